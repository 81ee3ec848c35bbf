// Reads the data of the page (its form is described in grn/report/data.py) into leases and types.

const OOM = new Set(["oom", "oom-suspected"]);
const QUIET_S = 600; // shown of a time in which nothing ran, while the page is alive
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

function letterOf(number) {
  const rest = Math.floor(number / LETTERS.length);
  return (rest ? letterOf(rest - 1) : "") + LETTERS[number % LETTERS.length];
}

class Model {
  // `before`: the model that this one follows, whose types keep their letters and colours.
  constructor(data, before = null) {
    this.data = data;
    this.alive = before !== null;
    this.lostSince = {};
    this.devices = data.devices;
    this.numbers = new Map(data.devices.map((device, number) => [device.uuid, number]));
    this.kinds = new Map();
    this.named = before ? before.named : 0;
    for (const { type, letter, colour } of before ? before.kinds.values() : []) {
      this.kinds.set(type, { type, letter, colour, leases: [] });
    }
    this.leases = [];
    this.byId = new Map();
    this.now = data.made_at;
    this._decode(data.leases, data.words);
    this._nameKinds();
    this.totals = data.totals.map(([kind, outcome, number, peak]) => ({
      kind: data.words[kind],
      outcome: known(outcome) ? data.words[outcome] : null,
      number,
      peak,
    }));
  }

  _decode(columns, words) {
    const column = (name) => columns[name] || [];
    const word = (name, i) => (known(column(name)[i]) ? words[column(name)[i]] : null);
    let granted = 0;
    for (let i = 0; i < columns.count; i += 1) {
      granted += column("granted")[i];
      const from = columns.base + granted / 1000;
      const lease = { from, number: i };
      for (const name of ["id", "uid", "pid", "priority", "gpus", "booked_mib", "probe", "exit_code",
        "signal", "peak_mib", "rss_mib", "cpu_s", "curve", "devices"]) lease[name] = column(name)[i] ?? null;
      for (const name of ["label", "engine", "policy", "outcome", "source"]) lease[name] = word(name, i);
      for (const name of ["waited", "ran"]) lease[name] = seconds(column(name)[i]);
      const ended = seconds(column("ended")[i]);
      lease.ended = known(ended) ? from + ended : null;
      const freed = seconds(column("freed")[i]);
      lease.freed = known(freed) ? lease.ended + freed : null;
      this._take(lease, word("type", i));
    }
  }

  _take(lease, type) {
    lease.kind = this.kind(type);
    lease.kind.leases.push(lease);
    lease.oom = OOM.has(lease.outcome);
    this.leases.push(lease);
    this.byId.set(lease.id, lease);
    return lease;
  }

  kind(type) {
    if (!this.kinds.has(type)) this.kinds.set(type, { type, leases: [], colour: null, letter: "" });
    return this.kinds.get(type);
  }

  // Those that fill most of the timeline have colours of their own. A letter each has one; who has
  // been given a colour keeps it, so that a page that is alive does not change under one's eyes.
  _nameKinds() {
    const weight = (kind) =>
      kind.leases.reduce((sum, x) => sum + (x.booked_mib ?? 1) * (this.end(x) - x.from) * x.devices.length, 0);
    const weights = new Map([...this.kinds.values()].map((kind) => [kind, weight(kind)]));
    const order = [...this.kinds.values()].sort((a, b) => weights.get(b) - weights.get(a));
    for (const kind of order) {
      if (kind.letter) continue;
      kind.letter = letterOf(this.named);
      kind.colour = this.named < TYPE_COLOURS ? this.named : null;
      this.named += 1;
    }
  }

  // -- what happens while the page is open: told by events and by states, in any order, twice or not

  granted(told, from) {
    const there = this.byId.get(told.id);
    if (there) {
      if (told.event) there.from = from; // an event is dated to the moment
      return there;
    }
    const nothing = { uid: null, pid: null, priority: null, gpus: null, exit_code: null, signal: null, peak_mib: null,
      rss_mib: null, cpu_s: null, curve: null, policy: null, outcome: null, source: null, waited: null, ran: null,
      ended: null, freed: null };
    const lease = { ...nothing, number: this.leases.length, from, id: told.id, label: told.label ?? "", engine: told.engine,
      uid: told.uid ?? null, booked_mib: told.booked_mib ?? null, probe: told.probe ? 1 : 0, waited: told.waited_s ?? null,
      devices: told.devices.map((uuid) => this._device(uuid)) };
    this._take(lease, told.type);
    this._nameKinds();
    this._count(lease, 1);
    this.data.leases.count += 1;
    this.data.leases_in_all += 1;
    return lease;
  }

  ended(told, at) {
    const lease = this.byId.get(told.id) ?? this.granted(told, at - (told.ran_s ?? 0));
    if (lease.outcome !== null) return;
    this._count(lease, -1);
    for (const name of ["outcome", "exit_code", "signal", "peak_mib", "source", "cpu_s", "rss_mib"]) lease[name] = told[name] ?? null;
    lease.ended = at;
    lease.freed = told.draining ? null : at;
    lease.ran = told.ran_s ?? at - lease.from;
    lease.oom = OOM.has(lease.outcome);
    this._count(lease, 1);
  }

  learnt(told) {
    const { learnt } = this.data;
    const place = learnt.findIndex((one) => one.type === told.type && one.device_model === told.device_model);
    learnt.splice(place < 0 ? learnt.length : place, 1, told);
  }

  // What has been lost since `lost_s` ago, MiB by cause.
  lose(lost, lost_s) {
    for (const [cause, mib] of Object.entries(lost)) this.lostSince[cause] = (this.lostSince[cause] ?? 0) + mib * lost_s;
  }

  freed(id, at) {
    const lease = this.byId.get(id);
    if (!lease || lease.freed !== null) return;
    lease.ended = lease.ended ?? at;
    lease.freed = at;
  }

  _device(uuid) {
    if (!this.numbers.has(uuid)) {
      this.numbers.set(uuid, this.devices.length);
      this.devices.push({ uuid, index: null, model: null, total_mib: null, capacity_mib: null });
      this.data.usage.devices.push(null);
    }
    return this.numbers.get(uuid);
  }

  _count(lease, by) {
    const { kind, outcome } = lease;
    let one = this.totals.find((total) => total.kind === kind.type && total.outcome === outcome);
    if (!one) {
      one = { kind: kind.type, outcome, number: 0, peak: null };
      this.totals.push(one);
    }
    one.number += by;
    if (known(lease.peak_mib)) one.peak = Math.max(one.peak ?? 0, lease.peak_mib);
    this.data.types_in_all = Math.max(this.data.types_in_all, new Set(this.totals.map((total) => total.kind)).size);
  }

  // Whether it holds its memory still, as far as is known.
  open(lease) {
    return lease.freed === null && (this.alive || lease.ended === null);
  }

  end(lease) {
    return this.open(lease) ? Math.max(this.now, lease.from) : (lease.freed ?? lease.ended);
  }

  extent() {
    const { since, until, usage } = this.data;
    let from = Infinity;
    let to = -Infinity;
    for (const lease of this.leases) {
      from = Math.min(from, lease.from);
      to = Math.max(to, this.end(lease));
    }
    if (usage.bins.length && (!this.leases.length || this.cut)) {
      from = Math.min(from, usage.base + usage.bins[0] * usage.step_s);
      to = Math.max(to, usage.base + (usage.bins[usage.bins.length - 1] + 1) * usage.step_s);
    }
    if (this.alive) {
      from = Math.min(from, this.now - QUIET_S);
      to = Math.max(to, this.now);
    }
    if (!(from < to)) return [since, until];
    from = Math.max(from, since);
    to = Math.min(to, Math.max(until, this.now));
    const margin = Math.max((to - from) * 0.01, 0.05);
    return [from - margin, to + margin];
  }

  get cut() {
    return this.data.leases_in_all > this.data.leases.count;
  }

  deviceName(number) {
    const device = this.devices[number];
    return known(device.index) ? `device ${device.index}` : `device ${device.uuid.slice(0, 12)}`;
  }
}

// What a job is called, and its type if that says more. A label that is the type cut short says nothing.
function namesOf({ label, type }) {
  if (!label || type.startsWith(label.replace(/(\.{2,3}|…)$/, ""))) return [type, null];
  return [label, type];
}

const nameOf = (lease) => namesOf({ label: lease.label, type: lease.kind.type })[0];

const seconds = (ms) => (known(ms) ? ms / 1000 : null);

// In which words an end is told, and how it counts: ok, oom, bad (not by its own fault or choice: none).
function endOf(lease) {
  const outcome = lease.outcome;
  if (outcome === null) return { text: lease.ended === null ? "running" : "unknown", sort: "none" };
  if (outcome === "ok") return { text: "ok", sort: "ok" };
  if (outcome === "oom") return { text: "out of memory", sort: "oom" };
  if (outcome === "oom-suspected") return { text: "out of memory?", sort: "oom" };
  if (outcome === "failed" && known(lease.exit_code)) return { text: `failed (${lease.exit_code})`, sort: "bad" };
  if (outcome === "killed" && known(lease.signal)) return { text: `killed (${lease.signal})`, sort: "bad" };
  return { text: outcome, sort: "bad" };
}

const SIGNS = { ok: "✓", oom: "▲", bad: "✕", none: "" };

function endMark(lease) {
  const { text, sort } = endOf(lease);
  return el("span", { class: `end ${sort}` }, SIGNS[sort] ? `${SIGNS[sort]} ${text}` : text);
}
