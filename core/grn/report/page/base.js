// What everything else stands on: elements made without markup, formats, the theme.
// Texts of jobs are hostile: they only ever become text nodes. There is no innerHTML in this page.

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

// A type begins with a folder or a program and ends with what tells it from others: the middle can go.
function brief(text) {
  return text.length <= 34 ? text : `${text.slice(0, 8)}…${text.slice(-25)}`;
}

const byId = (id) => document.getElementById(id);
const fill = (id, ...children) => byId(id).replaceChildren(...children.filter((c) => c !== null));
const known = (value) => value !== null && value !== undefined;
const UNKNOWN = "–";

function rounded(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}

function memory(mib) {
  if (!known(mib)) return UNKNOWN;
  return Math.abs(mib) < 1024 ? `${Math.round(mib)} MiB` : `${rounded(mib / 1024)} GiB`;
}

// In hours, or in minutes if `among` these, of which it may be a part, hours would be little.
function memoryTime(mibSeconds, among = mibSeconds) {
  const hours = mibSeconds / 1024 / 3600;
  return among >= 0.1 * 1024 * 3600 || !among ? `${rounded(hours)} GiB h` : `${rounded(hours * 60)} GiB min`;
}

function duration(s) {
  if (!known(s)) return UNKNOWN;
  if (s < 10) return `${Number(s.toFixed(s < 1 ? 2 : 1))} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  if (s < 48 * 3600) return `${rounded(s / 3600)} h`;
  return `${rounded(s / 86400)} days`;
}

const two = (number) => String(number).padStart(2, "0");

function day(at) {
  const date = new Date(at * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

function clock(at, withSeconds = true) {
  const date = new Date(at * 1000);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${text}:${two(date.getSeconds())}` : text;
}

const moment = (at) => (known(at) ? `${day(at)} ${clock(at)}` : UNKNOWN);
const share = (part, whole) => (whole > 0 ? `${rounded((100 * part) / whole)} %` : UNKNOWN);
const count = (number, one, many = `${one}s`) =>
  `${number.toLocaleString("en-GB")} ${number === 1 ? one : many}`;

function quantile(sorted, part) {
  if (!sorted.length) return null;
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
}

// -- the theme: colours live in the style sheet, and a canvas has to be told ---------------------

const TYPE_COLOURS = 12;
let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  theme = { types: [], font: getComputedStyle(document.body).fontFamily };
  for (const name of ["paper", "panel", "ink", "soft", "line", "faint", "oom", "focus", "measured",
    "booked", "foreign"]) theme[name] = read(name);
  for (let number = 0; number < TYPE_COLOURS; number += 1) theme.types.push(read(`type-${number}`));
  theme.other = read("type-other");
}

function colourOf(kind) {
  return kind.colour === null ? theme.other : theme.types[kind.colour];
}

function swatch(kind) {
  const made = el("b", { class: "key" }, kind.letter);
  made.style.background = kind.colour === null ? "var(--type-other)" : `var(--type-${kind.colour})`;
  return made;
}
