// The timeline that answers: hover, tap, keys, drag, zoom; and the strip that shows where one is.

const DRAG_PX = 4;
const GRIP_PX = 9;

class Timeline {
  constructor(model, view, changed) {
    this.model = model;
    this.view = view;
    this.changed = changed;
    this.canvas = byId("rows");
    this.strip = byId("strip");
    this.rows = new Rows(this.canvas, model, view);
    this.chosen = null;
    this.pointed = null;
    this.pointers = new Map();
    this._listen();
    this._listenStrip();
  }

  // -- drawing ----------------------------------------------------------------------------------

  draw() {
    this.rows.draw(this.chosen, this.pointed);
    this._drawStrip();
    const { devices } = this.model;
    this.canvas.setAttribute("aria-label", `Timeline of ${count(devices.length, "device")}, ${moment(this.view.from)} to ${moment(this.view.to)}`);
  }

  resize(scale) {
    this.rows.resize(scale);
    this._hideTip();
  }

  renew() {
    this.rows.layOutAll();
    const again = (block) => (block ? this.rows.blocksOf(block.lease).find((one) => one.device === block.device) ?? null : null);
    this.chosen = again(this.chosen);
    this.pointed = again(this.pointed);
  }

  _drawStrip() {
    const { strip, view, rows } = this;
    const width = rows.width;
    const height = 44;
    strip.width = Math.round(width * rows.scale);
    strip.height = Math.round(height * rows.scale);
    const c = strip.getContext("2d");
    c.setTransform(rows.scale, 0, 0, rows.scale, 0, 0);
    const all = Math.round(width - rows.left);
    const columns = new Columns({ from: view.least, to: view.most }, all);
    addBooked(columns, this.model, rows);
    const means = columns.means();
    const top = Math.max(...means, totalOf(this.model, "total_mib"), 1);
    c.fillStyle = theme.panel;
    c.fillRect(rows.left, 0, all, height);
    c.fillStyle = theme.booked;
    means.forEach((mib, x) => {
      const h = (mib / top) * (height - 4);
      if (h > 0) c.fillRect(rows.left + x, height - Math.max(h, 1), 1, Math.max(h, 1));
    });
    const [from, to] = this._window();
    c.fillStyle = theme.paper;
    c.globalAlpha = 0.66;
    c.fillRect(rows.left, 0, from - rows.left, height);
    c.fillRect(to, 0, width - to, height);
    c.globalAlpha = 1;
    c.strokeStyle = theme.ink;
    c.strokeRect(from + 0.5, 0.5, Math.max(to - from - 1, 2), height - 1);
    c.fillStyle = theme.ink;
    if (!view.all) for (const x of [from, to]) c.fillRect(x - 1.5, 14, 3, 16);
    if (rows.narrow) return;
    c.fillStyle = theme.soft;
    c.font = `11.5px ${theme.font}`;
    c.fillText("all of it", 0, 17);
    c.fillText(duration(view.most - view.least), 0, 32);
  }

  _window() {
    const { view, rows } = this;
    const x = (at) => rows.left + ((at - view.least) / (view.most - view.least)) * (rows.width - rows.left);
    return [x(view.from), x(view.to)];
  }

  // -- choosing ---------------------------------------------------------------------------------

  choose(block, { reveal = false } = {}) {
    this.chosen = block;
    if (block && reveal) this.view.reveal(block.from, block.to);
    showChosen(block ? block.lease : null, this.model, () => this.choose(null));
    byId("said").textContent = block ? spoken(block.lease, this.model) : "";
    this.draw();
  }

  chooseLease(lease) {
    if (!lease.block) return;
    this.choose(lease.block, { reveal: true });
    byId("stage").scrollIntoView({ block: "nearest" });
  }

  bringOut(kind) {
    this.rows.only = this.rows.only === kind ? null : kind;
    this.draw();
    return this.rows.only;
  }

  // -- pointers ---------------------------------------------------------------------------------

  _listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this._down(event));
    canvas.addEventListener("pointermove", (event) => this._moved(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this._up(event));
    canvas.addEventListener("pointerleave", () => this._point(null));
    canvas.addEventListener("dblclick", (event) => this.view.zoom(0.4, this.rows.at(event.offsetX)));
    canvas.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this._key(event));
  }

  _down(event) {
    this.pointers.set(event.pointerId, event.offsetX);
    this.began = { x: event.offsetX, y: event.offsetY, from: this.view.from, to: this.view.to, dragged: false };
    this.pinched = null;
  }

  _moved(event) {
    if (!this.pointers.has(event.pointerId)) {
      if (event.pointerType !== "touch") this._point(this.rows.hit(event.offsetX, event.offsetY), event);
      return;
    }
    this.pointers.set(event.pointerId, event.offsetX);
    if (this.pointers.size === 2) this._pinch();
    else this._drag(event);
  }

  _drag(event) {
    const by = event.offsetX - this.began.x;
    if (!this.began.dragged && Math.abs(by) < DRAG_PX) return;
    if (!this.began.dragged) this.canvas.setPointerCapture(event.pointerId);
    this.began.dragged = true;
    this._hideTip();
    const length = this.began.to - this.began.from;
    const shift = (by / (this.rows.width - this.rows.left)) * length;
    this.view.show(this.began.from - shift, this.began.to - shift);
  }

  _pinch() {
    const [a, b] = [...this.pointers.values()].sort((x, y) => x - y);
    const spread = Math.max(b - a, 20);
    if (this.pinched) this.view.zoom(this.pinched / spread, this.rows.at((a + b) / 2));
    this.pinched = spread;
    this.began.dragged = true;
  }

  _up(event) {
    const was = this.pointers.delete(event.pointerId);
    if (!was || event.type === "pointercancel" || this.began.dragged) return;
    this._hideTip();
    this.choose(this.rows.hit(event.offsetX, event.offsetY));
  }

  _wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), this.rows.at(event.offsetX));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      this.view.move((event.deltaX || event.deltaY) / this.rows.width);
    }
  }

  _point(block, event) {
    if (block !== this.pointed) {
      this.pointed = block;
      this.canvas.style.cursor = block ? "pointer" : "default";
      this.rows.draw(this.chosen, block);
      if (block) fill("tip", card(block.lease, this.model));
    }
    if (!block) this._hideTip();
    else if (event) this._placeTip(event.offsetX, event.offsetY);
  }

  _placeTip(x, y) {
    const tip = byId("tip");
    tip.hidden = false;
    const room = this.rows.width;
    const left = x + 18 + tip.offsetWidth <= room ? x + 18 : x - 18 - tip.offsetWidth;
    tip.style.left = `${Math.max(4, Math.min(left, room - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(-40, y - 24)}px`;
  }

  _hideTip() {
    byId("tip").hidden = true;
  }

  // -- keys -------------------------------------------------------------------------------------

  _key(event) {
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const zooms = { "+": 0.6, "=": 0.6, "-": 1 / 0.6 };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (steps[event.key]) this._step(...steps[event.key]);
    else if (zooms[event.key]) this.view.zoom(zooms[event.key], this.chosen ? (this.chosen.from + this.chosen.to) / 2 : undefined);
    else if (event.key === "Home" || event.key === "End") this._toEnd(event.key === "Home");
    else if (event.key === "Escape") this.choose(null);
    else return;
    event.preventDefault();
  }

  _step(along, across) {
    const filled = this.rows.rows.filter((row) => row.blocks.length);
    if (!filled.length) return;
    const { chosen } = this;
    if (!chosen) {
      const inView = filled.flatMap((row) => row.blocks).find((block) => block.to >= this.view.from && block.from <= this.view.to);
      this.choose(inView ?? filled[0].blocks[0], { reveal: true });
      return;
    }
    const row = filled.findIndex((one) => one.number === chosen.device);
    if (along) {
      const { blocks } = filled[row];
      const next = blocks[blocks.indexOf(chosen) + along];
      if (next) this.choose(next, { reveal: true });
      return;
    }
    const other = filled[row + across];
    if (!other) return;
    const middle = (chosen.from + chosen.to) / 2;
    const away = (block) => Math.max(block.from - middle, middle - block.to, 0);
    this.choose(other.blocks.reduce((a, b) => (away(b) < away(a) ? b : a)), { reveal: true });
  }

  _toEnd(first) {
    const row = this.rows.rows.find((one) => this.chosen ? one.number === this.chosen.device : one.blocks.length);
    if (row) this.choose(row.blocks[first ? 0 : row.blocks.length - 1], { reveal: true });
  }

  // -- the strip --------------------------------------------------------------------------------

  _listenStrip() {
    const { strip, view } = this;
    const at = (x) => view.least + ((x - this.rows.left) / (this.rows.width - this.rows.left)) * (view.most - view.least);
    let drag = null;
    strip.addEventListener("pointerdown", (event) => {
      strip.setPointerCapture(event.pointerId);
      drag = this._gripped(event.offsetX, at(event.offsetX));
    });
    strip.addEventListener("pointermove", (event) => {
      const [from, to] = this._window();
      const x = event.offsetX;
      const onGrip = Math.min(Math.abs(x - from), Math.abs(x - to)) < GRIP_PX && !view.all;
      if (!drag) strip.style.cursor = onGrip ? "ew-resize" : view.all ? "crosshair" : "grab";
      else drag(at(x));
    });
    for (const name of ["pointerup", "pointercancel"]) strip.addEventListener(name, () => { drag = null; });
  }

  // What dragging from here does: an edge, the whole window, or a new one.
  _gripped(x, at) {
    const { view } = this;
    const [left, right] = this._window();
    const { from, to } = view;
    if (view.all) return (now) => view.show(Math.min(at, now), Math.max(at, now));
    if (Math.abs(x - left) < GRIP_PX) return (now) => view.show(Math.min(now, to - LEAST_S), to);
    if (Math.abs(x - right) < GRIP_PX) return (now) => view.show(from, Math.max(now, from + LEAST_S));
    const half = (to - from) / 2;
    const inside = x > left && x < right;
    if (!inside) view.show(at - half, at + half);
    const began = view.from;
    return (now) => view.show(began + now - at, began + now - at + 2 * half);
  }
}
