// The curve of memory booked against measured, and the bars of waits and of what was lost.

function totalOf(model, key) {
  return model.devices.reduce((sum, device) => sum + (device[key] ?? 0), 0);
}

function addUsage(columns, model, name) {
  const { base, step_s: step, bins, devices } = model.data.usage;
  for (const device of devices) {
    if (!device) continue;
    bins.forEach((bin, i) => columns.add(base + bin * step, base + (bin + 1) * step, device[name][i] ?? 0));
  }
}

function addBooked(columns, model, rows) {
  if (model.cut) addUsage(columns, model, "booked");
  else for (const piece of rows.pieces()) columns.add(piece.from, piece.to, piece.mib);
}

// Where minutes are too coarse, the tenths of each lease's run are finer.
function addMeasured(columns, model) {
  const { step_s: step, bins } = model.data.usage;
  if (model.cut || (bins.length > 1 && step * columns.scale <= 4)) {
    addUsage(columns, model, "measured");
    return `means over ${duration(step)}`;
  }
  for (const x of model.leases) {
    const end = x.ended ?? model.end(x);
    const length = (end - x.from) / 10;
    if (x.curve) for (let i = 0; i < 10; i += 1) columns.add(x.from + i * length, x.from + (i + 1) * length, (x.curve[i] ?? 0) * x.devices.length);
    else columns.add(x.from, end, (x.measured_mib ?? x.peak_mib ?? 0) * x.devices.length);
  }
  return "tenths of each lease's run";
}

class Curve {
  constructor(model, view, rows) {
    this.model = model;
    this.view = view;
    this.rows = rows;
    this.canvas = byId("curve");
    this.canvas.addEventListener("pointermove", (event) => this._point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this._point(null));
  }

  draw() {
    const { rows, view, model } = this;
    this.height = 190;
    this.left = rows.narrow ? 0 : rows.left;
    const width = Math.round(rows.width - this.left);
    this.canvas.width = Math.round(rows.width * rows.scale);
    this.canvas.height = Math.round(this.height * rows.scale);
    const booked = new Columns(view, width);
    const measured = new Columns(view, width);
    const foreign = new Columns(view, width);
    addBooked(booked, model, rows);
    this.source = addMeasured(measured, model);
    addUsage(foreign, model, "foreign");
    this.means = { booked: booked.means(), measured: measured.means(), foreign: foreign.means() };
    this.total = totalOf(model, "total_mib");
    this.top = Math.max(this.total, ...this.means.booked, ...this.means.measured, 1) * 1.04;
    this._paint(null);
    this._say();
  }

  y(mib) {
    return this.height - 22 - (mib / this.top) * (this.height - 40);
  }

  _paint(pointed) {
    const { rows, left, height, means } = this;
    const c = this.canvas.getContext("2d");
    c.setTransform(rows.scale, 0, 0, rows.scale, 0, 0);
    c.clearRect(0, 0, rows.width, height);
    c.font = `11.5px ${theme.font}`;
    c.lineWidth = 1;
    this._grid(c);
    c.fillStyle = theme.booked;
    c.globalAlpha = 0.42;
    this._area(c, means.booked);
    c.globalAlpha = 1;
    c.strokeStyle = theme.booked;
    this._line(c, means.booked, 1.2);
    if (means.foreign.some((mib) => mib > 0)) {
      c.strokeStyle = theme.foreign;
      c.setLineDash([2, 3]);
      this._line(c, means.foreign, 1.5);
      c.setLineDash([]);
    }
    c.strokeStyle = theme.measured;
    this._line(c, means.measured, 1.8);
    if (pointed !== null) this._cross(c, pointed);
    c.strokeStyle = theme.soft;
    line(c, left, this.y(0) + 0.5, rows.width);
  }

  _grid(c) {
    const { rows, left, total } = this;
    let end = -Infinity;
    for (const tick of this.view.ticks(rows.width - left)) {
      const x = this.left + rows.x(tick.at) - rows.left;
      c.strokeStyle = theme.faint;
      c.beginPath();
      c.moveTo(Math.round(x) + 0.5, 12);
      c.lineTo(Math.round(x) + 0.5, this.y(0));
      c.stroke();
      const width = c.measureText(tick.text).width;
      const at = Math.min(Math.max(x - width / 2, left), rows.width - width);
      if (at < end + 8) continue;
      c.fillStyle = theme.soft;
      c.fillText(tick.text, at, this.height - 6);
      end = at + width;
    }
    if (!total) return;
    for (const part of [0.5, 1]) {
      const y = Math.round(this.y(total * part)) + 0.5;
      c.strokeStyle = part === 1 ? theme.soft : theme.line;
      if (part === 1) c.setLineDash([2, 4]);
      line(c, left, y, rows.width);
      c.setLineDash([]);
      c.fillStyle = theme.soft;
      const text = part === 1 ? `${memory(total)} in all` : memory(total * part);
      if (rows.narrow) c.fillText(text, 0, y - 4);
      else c.fillText(text, left - 10 - c.measureText(text).width, y + 4);
    }
  }

  _area(c, means) {
    c.beginPath();
    c.moveTo(this.left, this.y(0));
    means.forEach((mib, x) => {
      c.lineTo(this.left + x, this.y(mib));
      c.lineTo(this.left + x + 1, this.y(mib));
    });
    c.lineTo(this.left + means.length, this.y(0));
    c.fill();
  }

  _line(c, means, width) {
    c.lineWidth = width;
    c.beginPath();
    means.forEach((mib, x) => {
      if (x === 0) c.moveTo(this.left, this.y(mib));
      else c.lineTo(this.left + x, this.y(mib));
      c.lineTo(this.left + x + 1, this.y(mib));
    });
    c.stroke();
    c.lineWidth = 1;
  }

  _cross(c, x) {
    const { means, left, rows } = this;
    const i = Math.min(Math.max(Math.round(x - left), 0), means.booked.length - 1);
    c.strokeStyle = theme.soft;
    c.beginPath();
    c.moveTo(left + i + 0.5, 12);
    c.lineTo(left + i + 0.5, this.y(0));
    c.stroke();
    for (const name of ["booked", "measured"]) {
      c.fillStyle = theme[name];
      c.beginPath();
      c.arc(left + i + 0.5, this.y(means[name][i]), 3.5, 0, 7);
      c.fill();
    }
    const text = `${clock(rows.at(i + rows.left))}  booked ${memory(means.booked[i])}, measured ${memory(means.measured[i])}`;
    const width = c.measureText(text).width + 12;
    const at = Math.min(Math.max(left + i - width / 2, left), rows.width - width);
    c.fillStyle = theme.paper;
    c.fillRect(at, 0, width, 18);
    c.fillStyle = theme.ink;
    c.fillText(text, at + 6, 13);
  }

  _point(x) {
    if (this.means) this._paint(x === null || x < this.left ? null : x);
  }

  _say() {
    const { means, total } = this;
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);
    const booked = mean(means.booked);
    const measured = mean(means.measured);
    const of = total ? ` (${share(booked, total)} of ${memory(total)})` : "";
    const used = booked > 0 ? `, of which ${share(measured, booked)} was held at the same time` : "";
    byId("use-said").textContent = `In the time shown, ${memory(booked)}${of} was booked on average${used}. Measured: ${this.source}.`;
  }
}

// -- bars ------------------------------------------------------------------------------------------

function bars(rows) {
  const most = Math.max(...rows.map((row) => row.value), 0) || 1;
  return rows.map((row) => {
    const inner = el("div", { class: "fill" });
    inner.style.width = `${(100 * row.value) / most}%`;
    return el("div", { class: "bar" }, el("span", {}, row.name), el("div", { class: "track" }, inner), el("span", { class: "n" }, row.text), row.why ? el("span", { class: "why" }, row.why) : null);
  });
}

const WAITS = [[0.1, "at once"], [1, "to 1 s"], [10, "to 10 s"], [60, "to 1 min"], [600, "to 10 min"], [3600, "to 1 h"], [Infinity, "longer"]];

function drawWaits(model) {
  const waited = model.leases.map((lease) => lease.waited).filter(known).sort((a, b) => a - b);
  if (!waited.length) {
    byId("waits-said").textContent = "No lease was granted in this time.";
    fill("waits-bars");
    return;
  }
  const said = (s) => (s < WAITS[0][0] ? "no time" : `${duration(s)} or less`);
  const at = (part) => said(quantile(waited, part));
  const newest = model.cut ? ` Of the newest ${count(model.leases.length, "lease")}.` : "";
  byId("waits-said").textContent = `Half of all leases waited ${at(0.5)}, nine in ten ${at(0.9)}, the longest ${duration(waited[waited.length - 1])}.${newest}`;
  let before = 0;
  const rows = WAITS.map(([limit, name]) => {
    const until = waited.findIndex((s) => s >= limit);
    const upTo = until < 0 ? waited.length : until;
    const value = upTo - before;
    before = upTo;
    return { name, value, text: value ? `${value.toLocaleString("en-GB")} · ${share(value, waited.length)}` : "0" };
  });
  fill("waits-bars", ...bars(rows));
}

const CAUSES = {
  probe: ["probe", "A type that nobody knows yet is measured alone; the rest of its device stays empty meanwhile."],
  fragmentation: ["fragmentation", "There was room in all, but on no device enough for who waited."],
  head: ["head protection", "Kept free so that the first in the queue is not overtaken for ever."],
};

function drawLost(model) {
  const sums = Object.keys(CAUSES).map((cause) => (model.data.lost[cause] ?? []).reduce((a, b) => a + b, model.lostSince[cause] ?? 0));
  const all = sums.reduce((a, b) => a + b, 0);
  const [from, to] = model.extent();
  const there = totalOf(model, "capacity_mib") * (to - from);
  byId("lost-said").textContent = all
    ? `While somebody waited, ${memoryTime(all)} could be used by nobody: ${share(all, there)} of what the devices had to give in this time.`
    : "While somebody waited, nothing was lost.";
  fill("lost-bars", ...(all ? bars(Object.values(CAUSES).map(([name, why], i) => ({ name, why, value: sums[i], text: memoryTime(sums[i], all) }))) : []));
}
