// Puts the parts of the page together and keeps them in step.

class Page {
  constructor(data, live) {
    this.live = live;
    if (live) byId("now").hidden = false;
    readTheme();
    this.take(data);
    this._listen();
  }

  take(data) {
    this.model = new Model(data);
    this.view = new View(...this.model.extent(), () => this.drawTime());
    this.timeline = new Timeline(this.model, this.view);
    this.curve = new Curve(this.model, this.view, this.timeline.rows);
    this.table = new LeaseTable(this.model, (lease) => this.timeline.chooseLease(lease));
    this._show();
  }

  // Begin anew with other data, as far as possible without a jump.
  replace(data) {
    const chosen = this.timeline.chosen?.lease.id;
    this.model = new Model(data, this.model);
    this.view.reset(...this.model.extent());
    for (const part of [this.timeline, this.timeline.rows, this.curve, this.table]) part.model = this.model;
    this.timeline.chosen = null;
    this.timeline.pointed = null;
    this.timeline.rows.layOutAll();
    this._show();
    const again = this.model.byId.get(chosen);
    this.timeline.choose(again ? again.block : null);
  }

  _show() {
    this._about();
    fill("notes", ...this.notes().map((text) => el("li", {}, text)));
    this.drawAll();
  }

  drawAll() {
    drawFigures(this.model, this.timeline.rows);
    this.legends();
    this.drawTime();
    this.drawTables();
  }

  drawTables() {
    const choose = (lease) => this.timeline.chooseLease(lease);
    drawDevices(this.model, this.timeline.rows);
    drawWaits(this.model);
    drawLost(this.model);
    drawOoms(this.model, choose);
    drawTypes(this.model);
    drawEvents(this.model);
    this.table.draw();
  }

  drawTime() {
    this.timeline.draw();
    this.curve.draw();
  }

  _about() {
    const { data } = this.model;
    const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date()).find((p) => p.type === "timeZoneName");
    const minute = (at) => `${day(at)} ${clock(at, false)}`;
    const times = `${minute(data.since)} to ${minute(data.until)}, times in ${zone ? zone.value : "local time"}`;
    byId("about").textContent = this.live ? `The last ${duration(data.until - data.since)} and what happens now; times in ${zone ? zone.value : "local time"}.` : `${times}.`;
    byId("foot").textContent = `Made by GRN ${data.version} on ${data.host}, ${moment(data.made_at)}. Memory is per device; unknown is shown as ${UNKNOWN}.`;
  }

  notes() {
    const { data } = this.model;
    const cut = this.model.cut ? [`Drawn are the newest ${count(data.leases.count, "lease")} of ${data.leases_in_all.toLocaleString("en-GB")}; a shorter span shows the others.`] : [];
    return [...data.notes, ...cut];
  }

  legends() {
    const mark = (draw, text) => el("span", {}, draw, text);
    const box = (...parts) => svg("svg", { viewBox: "0 0 26 14", "aria-hidden": "true" }, ...parts);
    const shape = (name, attributes, style) => Object.assign(svg(name, attributes), {}) && styled(svg(name, attributes), style);
    const rect = (y, style) => shape("rect", { x: 0.5, y: y + 0.5, width: 25, height: 13 - y }, style);
    fill("marks",
      mark(box(rect(0, { fill: "var(--type-0)", fillOpacity: 0.26, stroke: "var(--type-0)" })), "booked"),
      mark(box(rect(6, { fill: "var(--type-0)", fillOpacity: 0.75 })), "held"),
      mark(box(rect(0, { fill: "none", stroke: "var(--ink)", strokeDasharray: "4 3" })), "probe: measured alone"),
      mark(box(rect(0, { fill: "var(--oom)", fillOpacity: 0.3, stroke: "var(--oom)" }), ...[2, 9, 16, 23].map((x) => shape("path", { d: `M${x - 3} 13 L${x + 3} 1` }, { stroke: "var(--oom)", strokeWidth: 2 })), ), "▲ out of memory"),
      mark(box(...[2, 7, 12, 17, 22].map((x) => shape("path", { d: `M${x - 2} 13 L${x + 3} 1` }, { stroke: "var(--ink)" }))), "still held after the end"),
      mark(box(...[3, 11, 19].map((x) => shape("path", { d: `M${x - 2} 13 L${x + 4} 1` }, { stroke: "var(--foreign)", strokeWidth: 1.5 }))), "of others"),
      mark(box(shape("path", { d: "M26 .5 H.5 V13.5 H26" }, { fill: "none", stroke: "var(--type-0)" })), "still runs"),
    );
    fill("use-legend",
      mark(box(rect(0, { fill: "var(--booked)", fillOpacity: 0.42, stroke: "var(--booked)" })), "booked"),
      mark(box(shape("path", { d: "M0 7 H26" }, { stroke: "var(--measured)", strokeWidth: 2 })), "measured"),
      mark(box(shape("path", { d: "M0 7 H26" }, { stroke: "var(--foreign)", strokeWidth: 2, strokeDasharray: "2 3" })), "of others"),
    );
    const kinds = [...this.model.kinds.values()].sort((a, b) => a.letter.length - b.letter.length || (a.letter < b.letter ? -1 : 1));
    const button = (kind) => el("button", { type: "button", "aria-pressed": "false", "data-letter": kind.letter, title: kind.type, onclick: (event) => this._bringOut(kind, event.currentTarget) },
      swatch(kind), el("span", { class: "name" }, brief(kind.type)), el("span", { class: "count" }, kind.leases.length.toLocaleString("en-GB")));
    fill("kinds", ...kinds.slice(0, 24).map(button), kinds.length > 24 ? el("span", { class: "count" }, `and ${count(kinds.length - 24, "more type")}`) : null);
  }

  _bringOut(kind, button) {
    const only = this.timeline.bringOut(kind);
    for (const other of byId("kinds").querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
    if (only) button.setAttribute("aria-pressed", "true");
  }

  _do(what) {
    const { view } = this;
    const acts = {
      all: () => view.show(view.least, view.most),
      hour: () => view.show(view.most - 3600, view.most),
      day: () => view.show(view.most - 86400, view.most),
      in: () => view.zoom(0.5),
      out: () => view.zoom(2),
      earlier: () => view.move(-0.5),
      later: () => view.move(0.5),
    };
    acts[what]();
  }

  _listen() {
    for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => this._do(button.dataset.do));
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return; // a phone's address bar came or went
      width = window.innerWidth;
      this._again();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._again());
    window.addEventListener("beforeprint", () => this._print(true));
    window.addEventListener("afterprint", () => this._print(false));
  }

  _again(scale) {
    readTheme();
    this.timeline.resize(scale);
    this.drawTime();
  }

  // On paper all is light and sharp, and the whole time is shown.
  _print(on) {
    document.documentElement.toggleAttribute("data-print", on);
    this._again(on ? 2 : undefined);
  }
}

function styled(shape, style) {
  Object.assign(shape.style, style);
  return shape;
}

const page = new Page(JSON.parse(byId("data").textContent), document.body.dataset.live === "true");

// For whoever looks from outside, such as a test: where each block is, relative to the window.
window.grn = {
  page,
  boxes() {
    const { rows } = page.timeline;
    const at = rows.canvas.getBoundingClientRect();
    return rows.rows.flatMap((row) => row.blocks.flatMap((block) => block.parts.map((part) => {
      const box = rows.box(row, block, part);
      return { id: block.lease.id, device: block.device, x: box.x + at.x, y: box.y + at.y, w: box.w, h: box.h };
    })));
  },
};
if (page.live) window.grn.live = startLive(page);
