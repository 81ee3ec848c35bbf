// The page while it is alive: it hears of the broker through server-sent events, and says so if not.
//
// "data" is the last day, in the form of a report; "happened" are events, and "status" is what
// `grn status --json` prints. Each may tell what another one told before, so all is taken by the id of
// the lease. After a break the browser connects again by itself and is told all anew.

const TABLES_EVERY_MS = 4000;
const ANEW_EVERY_MS = 600000;
const MOST_ROWS = 100;
const HOUR_S = 3600;

function startLive(page) {
  const live = new Live(page);
  live.connect();
  return live;
}

class Live {
  constructor(page) {
    this.page = page;
    this.status = null;
    this.shift = 0; // the broker's clock less this browser's
    this.stale = false;
    setInterval(() => this._tick(), 1000);
    setInterval(() => this._tables(), TABLES_EVERY_MS);
    // Means over minutes are read from the history, so they come with a connection.
    setInterval(() => { if (!document.hidden) this.connect(); }, ANEW_EVERY_MS);
    document.addEventListener("visibilitychange", () => this._tick());
  }

  connect() {
    if (this.source) this.source.close();
    else this._say(false, "connecting");
    const source = new EventSource("stream");
    this.source = source;
    source.addEventListener("open", () => this._say(true, "live"));
    source.addEventListener("error", () => this._say(false, "no connection to the broker; trying again"));
    source.addEventListener("data", (event) => this._data(JSON.parse(event.data)));
    source.addEventListener("happened", (event) => this._happened(JSON.parse(event.data).events));
    source.addEventListener("status", (event) => this._status(JSON.parse(event.data)));
  }

  _say(here, text) {
    const link = byId("link");
    link.hidden = false;
    link.className = here ? "" : "away";
    link.textContent = text;
  }

  get now() {
    return Date.now() / 1000 + this.shift;
  }

  _data(data) {
    this.shift = -Infinity;
    this._clock(data.made_at);
    this.page.replace(data);
    const { view } = this.page;
    if (!this.ready && view.most - view.least > 2 * HOUR_S) view.show(view.most - HOUR_S, view.most);
    this.ready = true;
    for (const events of this.early ?? []) this._happened(events);
    this.early = [];
    if (this.status) this._status(this.status);
    this.losing = null;
  }

  // Whatever is told was told before now; the quickest message tells best by how much clocks differ.
  _clock(at) {
    this.shift = Math.max(this.shift, at - Date.now() / 1000);
  }

  _happened(events) {
    if (!this.ready) {
      (this.early ??= []).push(events);
      return;
    }
    const { model } = this.page;
    for (const told of events) {
      this._clock(told.at);
      const lease = { ...told, id: told.lease };
      if (told.event === "granted" && !told.nested) model.granted(lease, told.at);
      else if (told.event === "ended") model.ended(lease, told.at);
      else if (told.event === "freed") model.freed(told.lease, told.at);
      else if (told.event === "learnt") model.learnt(told);
    }
    this._changed();
  }

  _status(status) {
    const { model } = this.page;
    const now = status.at;
    this._clock(now);
    if (this.losing && this.ready) model.lose(this.losing.lost, now - this.losing.since);
    this.losing = { lost: status.lost ?? {}, since: now };
    this.status = status;
    if (!this.ready) return;
    const held = new Set();
    for (const told of status.leases) {
      held.add(told.id);
      const lease = model.granted({ ...told, probe: told.state === "probe" }, now - told.since_s);
      lease.measured_mib = told.measured_mib;
      if (lease.outcome === null) {
        lease.peak_mib = told.peak_mib;
        lease.source = told.peak_source;
      }
    }
    for (const told of status.recent ?? []) model.ended({ ...told, id: told.lease }, told.at);
    for (const lease of model.leases) if (lease.freed === null && !held.has(lease.id)) model.freed(lease.id, now);
    for (const told of status.devices) this._device(told);
    this._changed();
    this._panels();
  }

  _device(told) {
    const { model } = this.page;
    const device = model.devices[model._device(told.uuid)];
    Object.assign(device, { index: told.index, model: told.name, total_mib: told.total_mib, capacity_mib: told.capacity_mib });
  }

  _changed() {
    this.stale = true;
    this.page.timeline.renew();
    this._tick();
  }

  // Time goes on: leases that run become longer.
  _tick() {
    const { page } = this;
    if (!this.ready || document.hidden || page.timeline.pointers.size) return;
    page.model.now = this.now;
    for (const row of page.timeline.rows.rows) for (const block of row.blocks) block.to = page.model.end(block.lease);
    page.view.grow(this.now + Math.max(1, (page.view.most - page.view.least) * 0.01));
    page.drawTime();
  }

  // What is read rather than watched is drawn anew less often, and not under the reader's hands.
  _tables() {
    if (!this.stale || document.hidden) return;
    const { page } = this;
    const focus = document.activeElement;
    if (focus && focus.closest("table, #kinds")) return;
    this.stale = false;
    const only = page.timeline.rows.only;
    page.drawTables();
    page.legends();
    if (only) byId("kinds").querySelector(`[data-letter="${only.letter}"]`)?.setAttribute("aria-pressed", "true");
  }

  // -- what is now ------------------------------------------------------------------------------

  _panels() {
    const { status, page } = this;
    fill("bars", ...status.devices.map((device) => this._bar(device)));
    const warnings = [...page.notes(), ...status.warnings];
    fill("notes", ...warnings.map((text) => el("li", {}, text)));
    drawFigures(page.model, page.timeline.rows);
    this._running();
    this._waiting();
    this._recent();
  }

  _bar(device) {
    const { model } = this.page;
    const own = this.status.leases.filter((lease) => lease.devices.includes(device.uuid));
    const parts = own.map((told) => ({ told, mib: Math.max(told.booked_mib ?? 0, told.measured_mib ?? 0, 1) }));
    const foreign = device.foreign_mib ?? 0;
    const whole = Math.max(device.total_mib ?? 0, parts.reduce((sum, part) => sum + part.mib, foreign), 1);
    const track = el("div", { class: "track" }, ...parts.map((part) => this._segment(part, whole)));
    if (foreign > 0) {
      const part = el("div", { class: "seg foreign", title: `of others: ${memory(foreign)}` });
      part.style.width = `${(100 * foreign) / whole}%`;
      track.append(part);
    }
    const free = device.free_mib > 0 ? `, ${memory(device.free_mib)} free` : "";
    const name = el("div", {}, el("b", {}, `device ${device.index}`), el("span", { class: "sub" }, device.name),
      el("span", { class: "sub" }, `${memory(device.booked_mib)} of ${memory(device.total_mib)} booked${free}`));
    const problem = device.state === "ok" ? null : el("div", { class: "problem" }, `▲ ${device.state}${device.reason ? `: ${device.reason}` : ""}`);
    return el("div", { class: "device" }, name, track, problem);
  }

  _segment({ told, mib }, whole) {
    const { page } = this;
    const lease = page.model.byId.get(told.id);
    const colour = lease.kind.colour === null ? "var(--type-other)" : `var(--type-${lease.kind.colour})`;
    const tint = el("span", { class: "tint" });
    const held = el("span", { class: "held" });
    tint.style.background = colour;
    held.style.background = colour;
    held.style.width = `${Math.min(100, (100 * (told.measured_mib ?? 0)) / mib)}%`;
    const text = `${namesOf(told)[0]}: ${memory(told.measured_mib)} held of ${memory(told.booked_mib)} booked, ${told.state}`;
    const made = el("button", { type: "button", class: `seg ${told.state}`, title: text, "aria-label": text, onclick: () => page.timeline.chooseLease(lease) },
      tint, held, el("b", {}, lease.kind.letter));
    made.style.width = `${(100 * mib) / whole}%`;
    return made;
  }

  _running() {
    const { model, timeline } = this.page;
    const list = [...this.status.leases].sort((a, b) => a.since_s - b.since_s);
    const rows = list.slice(0, MOST_ROWS).map((told) => {
      const lease = model.byId.get(told.id);
      return [jobCell(lease, (one) => timeline.chooseLease(one)), onDevices(lease, model), memory(told.booked_mib), memory(told.measured_mib), memory(told.peak_mib),
        told.state, duration(told.since_s), [told.engine, known(told.uid) ? `user ${told.uid}` : null].filter(Boolean).join(", ")];
    });
    fill("running", table([["job", "name"], ["on"], ["booked", "n"], ["held", "n"], ["peak", "n"], ["state"], ["for", "n"], ["from"]], rows, "No job runs."), more(list));
  }

  _waiting() {
    const list = this.status.waiters;
    const rows = list.slice(0, MOST_ROWS).map((told) => [
      waiterCell(told), duration(told.since_s), wish(told), known(told.expected_s) ? `in ${duration(told.expected_s)}` : UNKNOWN, told.reason]);
    fill("waiting", table([["job", "name"], ["waits for", "n"], ["wants", "nowrap"], ["expected", "nowrap"], ["why it waits", "wide"]], rows, "Nobody waits."), more(list));
  }

  _recent() {
    const { model, timeline } = this.page;
    const list = [...(this.status.recent ?? [])].reverse();
    const rows = list.slice(0, 8).map((told) => {
      const lease = model.byId.get(told.lease);
      return [clock(told.at), jobCell(lease, (one) => timeline.chooseLease(one)), onDevices(lease, model), memory(told.booked_mib), memory(told.peak_mib), duration(told.ran_s), endMark(lease)];
    });
    fill("recent", table([["when", "nowrap"], ["job", "name"], ["on"], ["booked", "n"], ["peak", "n"], ["ran", "n"], ["end"]], rows, "No job has ended since the broker began."));
  }
}

function waiterCell(told) {
  const [name, below] = namesOf(told);
  return el("span", {}, el("span", {}, el("span", { class: "clip" }, name), below ? el("span", { class: "sub clip" }, below) : null));
}

function more(list) {
  return list.length > MOST_ROWS ? el("p", { class: "none" }, `and ${(list.length - MOST_ROWS).toLocaleString("en-GB")} more`) : null;
}

function wish(told) {
  const size = told.memory_mib === "whole" ? "all of it" : known(told.memory_mib) ? memory(told.memory_mib) : "its type's need";
  if (told.gpus === 0 || told.gpus === null) return "no device";
  return told.gpus === 1 ? size : `${told.gpus} devices, ${size} on each`;
}
