// The part of the time that is shown, shared by the timeline, the strip above it and the curve.

const TICKS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
  43200, 86400, 172800, 604800, 1209600, 2592000];
const LEAST_S = 0.2;

class View {
  constructor(from, to, changed) {
    this.changed = changed;
    this.reset(from, to);
  }

  reset(from, to) {
    this.least = from;
    this.most = to;
    this.from = from;
    this.to = to;
  }

  get all() {
    return this.from <= this.least && this.to >= this.most;
  }

  show(from, to) {
    const length = Math.min(Math.max(to - from, LEAST_S), this.most - this.least);
    this.from = Math.min(Math.max(from, this.least), this.most - length);
    this.to = this.from + length;
    this.changed();
  }

  // The page is alive: the end moves on, and who looks at it goes along.
  grow(to) {
    const length = this.to - this.from;
    const follows = this.to >= this.most - length * 0.02;
    const all = this.all;
    this.most = Math.max(this.most, to);
    if (all) this.to = this.most;
    else if (follows) {
      this.to = this.most;
      this.from = this.to - length;
    }
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(part) {
    const by = (this.to - this.from) * part;
    this.show(this.from + by, this.to + by);
  }

  reveal(from, to) {
    const length = this.to - this.from;
    if (to < this.from || from > this.to) this.show((from + to) / 2 - length / 2, (from + to) / 2 + length / 2);
  }

  // Moments at which the axis has a line, with the label of each; about one in `room` pixels.
  ticks(width, room = 86) {
    const wanted = ((this.to - this.from) / Math.max(width, 1)) * room;
    const step = TICKS_S.find((s) => s >= wanted) ?? TICKS_S[TICKS_S.length - 1];
    const offset = -new Date(this.from * 1000).getTimezoneOffset() * 60;
    const found = [];
    let before = null;
    for (let n = Math.ceil((this.from + offset) / step); n * step - offset <= this.to; n += 1) {
      const at = n * step - offset;
      const date = day(at);
      let text = clock(at, step < 60);
      if (step < 1) text += `.${Math.round((at % 1) * 10) % 10}`;
      if (step >= 86400) text = date.slice(5);
      found.push({ at, text, date: date === before ? null : date });
      before = date;
    }
    return found;
  }
}

// Sums of value times time for each pixel: what the curve and the strip are drawn from.
class Columns {
  constructor(view, width) {
    this.from = view.from;
    this.scale = width / (view.to - view.from);
    this.width = width;
    this.sums = new Float64Array(width + 1);
    this.steps = new Float64Array(width + 2);
  }

  add(from, to, value) {
    if (!value) return;
    const a = Math.max(0, (from - this.from) * this.scale);
    const b = Math.min(this.width, (to - this.from) * this.scale);
    if (!(b > a)) return;
    const first = Math.floor(a);
    const last = Math.min(Math.floor(b), this.width - 1);
    if (first === last) {
      this.sums[first] += value * (b - a);
      return;
    }
    this.sums[first] += value * (first + 1 - a);
    this.sums[last] += value * (b - last);
    this.steps[first + 1] += value;
    this.steps[last] -= value;
  }

  means() {
    const means = new Float64Array(this.width);
    let level = 0;
    for (let x = 0; x < this.width; x += 1) {
      level += this.steps[x];
      means[x] = Math.max(0, this.sums[x] + level);
    }
    return means;
  }
}
