// Draws the rows of the timeline. Knows where things are, and nothing of pointers or keys.
//
// A block is tinted as high as its booking and filled as high as what was held, in tenths of its run.
// Colour says the type, and so does the letter; an end for want of memory is red, hatched and has a
// triangle; a probe has a dashed outline; memory still held after the end is hatched.

const AXIS = 24;
const ROW_GAP = 14;
const NARROW = 620;

class Rows {
  constructor(canvas, model, view) {
    this.canvas = canvas;
    this.model = model;
    this.view = view;
    this.only = null; // the kind that is brought out
    this.layOutAll();
  }

  layOutAll() {
    const { model } = this;
    const lists = model.devices.map(() => []);
    const without = [];
    for (const lease of model.leases) {
      for (const number of lease.devices) lists[number].push(lease);
      if (!lease.devices.length) without.push(lease);
    }
    this.rows = model.devices.map((device, number) => {
      const { blocks, top } = layOut(device, number, lists[number], model);
      return this._row(device, number, blocks, Math.max(device.total_mib ?? 0, top) || 1);
    });
    if (without.length) {
      const free = { uuid: "", index: null, total_mib: null, capacity_mib: null };
      const unit = without.map((lease) => Object.create(lease, { booked_mib: { value: 1 }, places: { value: undefined, writable: true } }));
      const { blocks, top } = layOut(free, null, unit, model);
      for (const block of blocks) block.lease = Object.getPrototypeOf(block.lease);
      this.rows.push(this._row(free, null, blocks, Math.max(top, 4)));
    }
    this.resize();
  }

  _row(device, number, blocks, top) {
    for (const block of blocks) {
      block.device = number;
      block.lease.block = block;
    }
    return { device, number, blocks, top, foreign: number === null ? null : this.model.data.usage.devices[number] };
  }

  resize(scale = window.devicePixelRatio || 1) {
    this.width = Math.max(200, this.canvas.parentElement.clientWidth);
    this.narrow = this.width < NARROW;
    this.left = this.narrow ? 0 : 118;
    const few = this.rows.length;
    const full = few <= 2 ? 150 : few <= 4 ? 116 : few <= 8 ? 84 : 60;
    const largest = Math.max(...this.rows.map((row) => row.device.total_mib ?? 0), 1);
    let y = AXIS;
    for (const row of this.rows) {
      const part = row.number === null ? 0.5 : Math.max(0.45, (row.device.total_mib ?? largest) / largest);
      row.height = Math.round(full * part);
      row.y = y + (this.narrow ? 18 : 0);
      y = row.y + row.height + ROW_GAP;
    }
    this.height = y;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.scale = scale;
  }

  x(at) {
    return this.left + ((at - this.view.from) / (this.view.to - this.view.from)) * (this.width - this.left);
  }

  at(x) {
    return this.view.from + ((x - this.left) / (this.width - this.left)) * (this.view.to - this.view.from);
  }

  y(row, mib) {
    return row.y + row.height * (1 - mib / row.top);
  }

  draw(chosen, pointed) {
    const c = this.canvas.getContext("2d");
    c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    this._hatches(c);
    c.textBaseline = "alphabetic";
    this._axis(c);
    for (const row of this.rows) this._drawRow(c, row);
    for (const block of [pointed, chosen]) if (block) this._outline(c, block, block === chosen);
  }

  _hatches(c) {
    if (this.hatched === theme.paper + theme.oom) return;
    this.hatched = theme.paper + theme.oom;
    this.hatch = {
      oom: hatch(c, theme.oom, 6, 2.4),
      foreign: hatch(c, theme.foreign, 7, 1.2),
      draining: hatch(c, theme.ink, 5, 1),
    };
  }

  _axis(c) {
    c.font = `11.5px ${theme.font}`;
    c.lineWidth = 1;
    let end = -Infinity;
    for (const tick of this.view.ticks(this.width - this.left)) {
      const x = Math.round(this.x(tick.at)) + 0.5;
      c.strokeStyle = theme.faint;
      c.beginPath();
      c.moveTo(x, AXIS - 4);
      c.lineTo(x, this.height - ROW_GAP);
      c.stroke();
      const text = tick.date && tick.text.length <= 5 && tick.text.includes(":") && this.view.to - this.view.from > 43200
        ? `${tick.date.slice(5)} ${tick.text}` : tick.text;
      const width = c.measureText(text).width;
      const at = Math.min(Math.max(x - width / 2, 0), this.width - width);
      if (at < end + 8) continue;
      c.fillStyle = theme.soft;
      c.fillText(text, at, 13);
      end = at + width;
    }
  }

  _drawRow(c, row) {
    const base = row.y + row.height;
    c.fillStyle = theme.panel;
    c.globalAlpha = 0.55;
    c.fillRect(this.left, row.y, this.width - this.left, row.height);
    c.globalAlpha = 1;
    this._label(c, row);
    c.save();
    c.beginPath();
    c.rect(this.left, row.y - 8, this.width - this.left, row.height + 10);
    c.clip();
    this._foreign(c, row);
    for (const block of row.blocks) {
      if (block.to >= this.view.from && block.from <= this.view.to) this._block(c, row, block);
    }
    for (const block of row.blocks) if (block.lease.oom) this._triangle(c, row, block);
    const capacity = row.device.capacity_mib;
    if (known(capacity) && capacity < row.top) {
      c.strokeStyle = theme.soft;
      c.setLineDash([2, 4]);
      line(c, this.left, this.y(row, capacity), this.width);
      c.setLineDash([]);
    }
    c.restore();
    c.strokeStyle = theme.line;
    line(c, this.left, row.y - 0.5, this.width);
    c.strokeStyle = theme.soft;
    line(c, this.left, base + 0.5, this.width);
  }

  _label(c, row) {
    const { device } = row;
    const name = row.number === null ? "no device" : this.model.deviceName(row.number);
    const size = known(device.total_mib) ? memory(device.total_mib) : "";
    c.fillStyle = theme.ink;
    c.font = `600 12.5px ${theme.font}`;
    if (this.narrow) {
      c.fillText(name, 0, row.y - 6);
      const used = c.measureText(name).width;
      c.font = `11.5px ${theme.font}`;
      c.fillStyle = theme.soft;
      c.fillText(clipped(c, [size, device.model].filter(Boolean).join(", "), this.width - used - 12), used + 10, row.y - 6);
      return;
    }
    c.fillText(name, 0, row.y + 11);
    c.font = `11.5px ${theme.font}`;
    c.fillStyle = theme.soft;
    c.fillText(size, 0, row.y + 26);
    if (row.height > 44) c.fillText(clipped(c, device.model ?? "", this.left - 12), 0, row.y + 41);
  }

  _foreign(c, row) {
    const usage = this.model.data.usage;
    if (!row.foreign || !row.foreign.foreign.some((mib) => mib > 0)) return;
    c.fillStyle = this.hatch.foreign;
    usage.bins.forEach((bin, i) => {
      const mib = row.foreign.foreign[i];
      if (!(mib > 0)) return;
      const from = this.x(usage.base + bin * usage.step_s);
      const to = this.x(usage.base + (bin + 1) * usage.step_s);
      c.fillRect(from, row.y, to - from, (row.height * Math.min(mib, row.top)) / row.top);
    });
  }

  // The rectangle of a part on the canvas: as wide as can be seen, at least.
  box(row, block, [low, high, began, ended]) {
    const from = Math.max(this.x(began ?? block.from), this.left - 2);
    const to = Math.min(this.x(ended ?? block.to), this.width + 2);
    const y = this.y(row, high);
    return { x: from, y, w: Math.max(to - from, 1), h: Math.max(this.y(row, low) - y, 1) };
  }

  _block(c, row, block) {
    const { lease } = block;
    const colour = lease.oom ? theme.oom : colourOf(lease.kind);
    const pale = this.only && this.only !== lease.kind ? 0.13 : 1;
    block.parts.forEach((part, number) => {
      const box = this.box(row, block, part);
      if (box.w <= 0 || box.x > this.width) return;
      const fine = box.w >= 4 && box.h >= 4;
      c.fillStyle = colour;
      c.globalAlpha = 0.26 * pale;
      c.fillRect(box.x, box.y, box.w, box.h);
      c.globalAlpha = 0.6 * pale;
      this._held(c, row, block, part, box, number);
      if (lease.oom) {
        c.globalAlpha = pale;
        c.fillStyle = this.hatch.oom;
        c.fillRect(box.x, box.y, box.w, box.h);
      }
      this._draining(c, lease, box, pale);
      if (fine) this._edge(c, lease, box, colour, pale);
      if (number === 0 || box.h > 24) this._text(c, lease, box, pale, part[2] === undefined || number === 0);
    });
    c.globalAlpha = 1;
  }

  _held(c, row, block, part, box, number) {
    const { lease } = block;
    const below = block.parts.slice(0, number).reduce((sum, [low, high, , to]) => (to === undefined ? sum + high - low : sum), 0);
    const fillTo = (from, to, mib) => {
      const height = Math.min(Math.max(mib - below, 0), part[1] - part[0]);
      if (height > 0) c.fillRect(from, this.y(row, part[0] + height), to - from, (row.height * height) / row.top);
    };
    const left = this.x(block.from);
    const length = this.x(Math.min(block.to, lease.ended ?? Infinity)) - left;
    if (!lease.curve || length < 16) {
      fillTo(box.x, box.x + box.w, lease.measured_mib ?? lease.peak_mib ?? 0);
      return;
    }
    for (let i = 0; i < 10; i += 1) {
      // Whole pixels: two halves of one would show as a seam.
      const from = i === 0 ? box.x : Math.max(Math.round(left + (length * i) / 10), box.x);
      const to = Math.min(Math.round(left + (length * (i + 1)) / 10), box.x + box.w);
      if (to > from) fillTo(from, to, lease.curve[i] ?? 0);
    }
  }

  _draining(c, lease, box, pale) {
    if (lease.ended === null || this.model.end(lease) - lease.ended < 0.2) return;
    const from = Math.max(this.x(lease.ended), box.x);
    const width = box.x + box.w - from;
    if (width < 2) return;
    c.globalAlpha = 0.55 * pale;
    c.fillStyle = this.hatch.draining;
    c.fillRect(from, box.y, width, box.h);
  }

  _edge(c, lease, box, colour, pale) {
    c.globalAlpha = pale;
    c.strokeStyle = lease.probe ? theme.ink : colour;
    c.lineWidth = 1;
    if (lease.probe) c.setLineDash([4, 3]);
    const right = lease.ended === null ? box.x + box.w : box.x + box.w - 0.5;
    c.beginPath();
    c.moveTo(right, box.y + 0.5);
    c.lineTo(box.x + 0.5, box.y + 0.5);
    c.lineTo(box.x + 0.5, box.y + box.h - 0.5);
    c.lineTo(right, box.y + box.h - 0.5);
    if (lease.ended !== null) c.closePath(); // one that runs is open to the right
    c.stroke();
    c.setLineDash([]);
  }

  _text(c, lease, box, pale, withSize) {
    if (box.h < 13 || box.w < 15) return;
    c.globalAlpha = pale;
    c.fillStyle = theme.ink;
    const y = box.y + Math.min(box.h / 2 + 4, 14);
    const { sort } = endOf(lease);
    const bad = sort === "bad" || sort === "oom";
    const sign = bad && box.w >= 34 ? `${SIGNS[sort]} ` : "";
    c.font = `700 11px ${theme.font}`;
    const head = `${sign}${lease.kind.letter}`;
    const used = c.measureText(head).width;
    if (used > box.w - 6) return;
    const x = Math.max(box.x, this.left) + 4;
    c.fillText(head, x, y);
    const room = box.x + box.w - x - used - 9;
    if (room < 28) return;
    c.font = `11px ${theme.font}`;
    c.fillText(clipped(c, lease.oom ? `OOM ${nameOf(lease)}` : nameOf(lease), room), x + used + 5, y);
    const below = withSize && known(lease.booked_mib) ? held(lease) : "";
    if (box.h >= 31 && c.measureText(below).width <= box.x + box.w - x - 4) {
      c.globalAlpha = 0.75 * pale;
      c.fillText(below, x, y + 14);
    }
  }

  // So that a short one is seen as well.
  _triangle(c, row, block) {
    const x = this.x(block.lease.ended ?? block.to);
    if (x < this.left - 5 || x > this.width + 5) return;
    c.globalAlpha = this.only && this.only !== block.lease.kind ? 0.2 : 1;
    c.fillStyle = theme.oom;
    const y = this.narrow ? row.y + 8 : row.y + 1; // above a narrow row is its name
    c.beginPath();
    c.moveTo(x - 5, y - 8);
    c.lineTo(x + 5, y - 8);
    c.lineTo(x, y);
    c.fill();
    c.globalAlpha = 1;
  }

  _outline(c, block, firm) {
    for (const one of this.blocksOf(block.lease)) {
      const row = this.rowOf(one);
      for (const part of one.parts) {
        const box = this.box(row, one, part);
        if (box.x > this.width || box.x + box.w < this.left) continue;
        for (const [width, colour] of firm ? [[5, theme.paper], [2.5, theme.ink]] : [[1.5, theme.ink]]) {
          c.strokeStyle = colour;
          c.lineWidth = width;
          c.strokeRect(box.x, box.y, box.w, box.h);
        }
      }
    }
    c.lineWidth = 1;
  }

  // What was booked on devices: from, to, MiB and the number of the device of each piece.
  pieces() {
    return this.rows.filter((row) => row.number !== null).flatMap((row) => row.blocks.flatMap((block) =>
      block.parts.map(([low, high, from, to]) => ({ number: row.number, from: from ?? block.from, to: to ?? block.to, mib: high - low }))));
  }

  rowOf(block) {
    return this.rows.find((row) => row.number === block.device);
  }

  // A lease of several devices has a block on each.
  blocksOf(lease) {
    return this.rows.flatMap((row) => row.blocks.filter((block) => block.lease === lease));
  }

  // What is under a point; small blocks are met a little beside them, too.
  hit(x, y) {
    if (x < this.left) return null;
    const row = this.rows.find((one) => y >= one.y - 4 && y <= one.y + one.height + 4);
    if (!row) return null;
    let best = null;
    let nearest = 4;
    for (const block of row.blocks) {
      if (block.to < this.view.from || block.from > this.view.to) continue;
      for (const part of block.parts) {
        const box = this.box(row, block, part);
        const aside = Math.max(box.x - x, x - box.x - box.w, 0);
        const above = Math.max(box.y - y, y - box.y - box.h, 0);
        const distance = Math.hypot(aside, above);
        if (distance < nearest || (distance === 0 && nearest === 0)) {
          nearest = distance;
          best = block;
        }
      }
    }
    return best;
  }
}

function held(lease) {
  return known(lease.peak_mib) ? `${memory(lease.peak_mib)} of ${memory(lease.booked_mib)}` : memory(lease.booked_mib);
}

function line(c, from, y, to) {
  c.beginPath();
  c.moveTo(from, y);
  c.lineTo(to, y);
  c.stroke();
}

function hatch(c, colour, size, width) {
  const tile = document.createElement("canvas");
  tile.width = size;
  tile.height = size;
  const t = tile.getContext("2d");
  t.strokeStyle = colour;
  t.lineWidth = width * 0.7;
  for (const shift of [-size, 0, size]) {
    t.beginPath();
    t.moveTo(shift - 1, size + 1);
    t.lineTo(shift + size + 1, -1);
    t.stroke();
  }
  return c.createPattern(tile, "repeat");
}

function clipped(c, text, room) {
  const short = text.length > 120 ? text.slice(0, 120) : text;
  if (c.measureText(short).width <= room && short === text) return text;
  let low = 0;
  let high = short.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${short.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${short.slice(0, low)}…` : "";
}
