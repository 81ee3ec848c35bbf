// What is known of one lease, as a card: in the tip beside the pointer, or below the timeline.

function card(lease, model) {
  const facts = factsOf(lease, model).filter(([, value]) => value !== null);
  const [title, below] = namesOf({ label: lease.label, type: lease.kind.type });
  return el(
    "div",
    { class: "card" },
    el("h4", {}, title),
    below ? el("p", { class: "of" }, below) : null,
    el("dl", {}, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    sparkline(lease),
  );
}

function factsOf(lease, model) {
  const on = lease.devices.map((number) => model.deviceName(number)).join(", ");
  const over = known(lease.peak_mib) && known(lease.booked_mib) && lease.peak_mib > lease.booked_mib;
  const times = lease.devices.length > 1 ? " on each" : "";
  return [
    ["ended", endMark(lease)],
    ["on", on || "no device"],
    ["booked", known(lease.booked_mib) ? `${memory(lease.booked_mib)}${times}${lease.probe ? ", alone, to be measured" : ""}` : null],
    ["peak", known(lease.peak_mib) ? `${memory(lease.peak_mib)}${over ? ", over its booking" : ""}${lease.source ? ` (${lease.source})` : ""}` : "not measured"],
    ["began", moment(lease.from)],
    ["ran", duration(lease.ran ?? (lease.ended ?? model.now) - lease.from)],
    ["held on", lease.ended !== null && model.end(lease) - lease.ended >= 0.2 ? `${duration(model.end(lease) - lease.ended)} after its end` : null],
    ["waited", duration(lease.waited)],
    ["CPU time", known(lease.cpu_s) ? duration(lease.cpu_s) : null],
    ["main memory", known(lease.rss_mib) ? memory(lease.rss_mib) : null],
    ["from", [lease.engine, known(lease.uid) ? `user ${lease.uid}` : null].filter(Boolean).join(", ") || null],
    ["lease", lease.id],
  ];
}

function spoken(lease, model) {
  const on = lease.devices.map((number) => model.deviceName(number)).join(", ") || "no device";
  return `${nameOf(lease)}, ${on}, ${endOf(lease).text}, booked ${memory(lease.booked_mib)}, peak ${memory(lease.peak_mib)}, began ${moment(lease.from)}, ran ${duration(lease.ran)}`;
}

// Ten steps of its run; the dashed line is what was booked.
function sparkline(lease) {
  if (!lease.curve) return null;
  const steps = lease.curve.slice(0, 10).map((mib) => mib ?? 0);
  const top = Math.max(lease.booked_mib ?? 0, lease.curve[10] ?? 0, ...steps, 1);
  const y = (mib) => 44 - (mib / top) * 42;
  const outline = steps.map((mib, i) => `L${i * 10} ${y(mib)} L${i * 10 + 10} ${y(mib)}`).join(" ");
  const drawn = svg("svg", { viewBox: "0 0 100 46", preserveAspectRatio: "none", role: "img", "aria-label": `memory over its run: ${steps.map(memory).join(", ")}; at most ${memory(lease.curve[10])}` });
  const shape = svg("path", { d: `M0 44 ${outline} L100 44 Z`, "fill-opacity": 0.5 });
  shape.style.fill = lease.oom ? "var(--oom)" : lease.kind.colour === null ? "var(--type-other)" : `var(--type-${lease.kind.colour})`;
  const base = svg("path", { d: "M0 44.5 H100", "vector-effect": "non-scaling-stroke", fill: "none" });
  base.style.stroke = "var(--line)";
  drawn.append(shape, base);
  if (known(lease.booked_mib)) {
    const booked = svg("path", { d: `M0 ${y(lease.booked_mib)} H100`, "vector-effect": "non-scaling-stroke", "stroke-dasharray": "3 3", fill: "none" });
    booked.style.stroke = "var(--soft)";
    drawn.append(booked);
  }
  return drawn;
}

function showChosen(lease, model, close) {
  const place = byId("chosen");
  place.hidden = lease === null;
  if (lease === null) {
    place.replaceChildren();
    return;
  }
  place.replaceChildren(
    el("button", { type: "button", class: "close", "aria-label": "Let go of the lease", onclick: close }, "✕"),
    card(lease, model),
  );
}
