// The tables and key figures. Every text of a job is a text node.

function table(columns, rows, empty) {
  if (!rows.length) return el("p", { class: "none" }, empty);
  const head = columns.map(([name, sort]) => el("th", { class: sort ?? "", scope: "col" }, name));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => {
    const sort = columns[i][1] ?? "";
    return el("td", { class: sort }, ...(Array.isArray(cell) ? cell : [cell]));
  })));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

function named(kind, text, below) {
  return el("span", {}, swatch(kind), el("span", {}, el("span", { class: "clip" }, text), below ? el("span", { class: "sub clip" }, below) : null));
}

function jobCell(lease, choose) {
  const [text, below] = namesOf({ label: lease.label, type: lease.kind.type });
  const cell = named(lease.kind, text, below);
  if (!choose || !lease.block) return cell;
  const go = el("a", { class: "go", role: "button", tabindex: 0, onclick: () => choose(lease), onkeydown: (event) => { if (event.key === "Enter") choose(lease); } }, text);
  cell.querySelector(".clip").replaceChildren(go);
  return cell;
}

const onDevices = (lease, model) => lease.devices.map((n) => model.devices[n].index ?? model.deviceName(n)).join(", ") || "none";

function drawFigures(model, rows) {
  const { totals, leases } = model;
  const all = totals.reduce((sum, one) => sum + one.number, 0);
  const of = (test) => totals.reduce((sum, one) => sum + (test(one.outcome) ? one.number : 0), 0);
  const ok = of((outcome) => outcome === "ok");
  const ooms = of((outcome) => OOM.has(outcome));
  const running = of((outcome) => outcome === null);
  const bad = all - ok - ooms - running;
  const waited = leases.map((lease) => lease.waited).filter(known).sort((a, b) => a - b);
  const booked = rows.pieces().reduce((sum, piece) => sum + piece.mib * (piece.to - piece.from), 0);
  const [from, to] = model.extent();
  const figure = (name, value, small, bad = false) => el("div", { class: bad ? "bad" : "" }, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : null));
  fill(
    "figures",
    figure("leases", all.toLocaleString("en-GB"), `of ${count(model.data.types_in_all, "type")}${running ? `, ${running} run` : ""}`),
    figure("ended well", all - running ? share(ok, all - running) : UNKNOWN, bad ? `${bad} failed or stopped` : all > running ? "none failed" : null),
    figure("out of memory", ooms ? `▲ ${ooms}` : "0", null, ooms > 0),
    figure("memory booked", memoryTime(booked), `${share(booked, totalOf(model, "total_mib") * (to - from))} of ${duration(to - from)}`),
    figure("waited", duration(quantile(waited, 0.5)), waited.length ? `median; longest ${duration(waited[waited.length - 1])}` : null),
  );
}

function drawDevices(model, all) {
  const { usage } = model.data;
  const sums = model.devices.map(() => 0);
  for (const piece of all.pieces()) sums[piece.number] += piece.mib * (piece.to - piece.from);
  const [from, to] = model.extent();
  const rows = model.devices.map((device, number) => {
    const own = model.leases.filter((lease) => lease.devices.includes(number));
    const booked = sums[number] / (to - from);
    const busy = (usage.devices[number]?.utilisation ?? []).filter(known);
    const peak = own.reduce((most, x) => Math.max(most, x.peak_mib ?? 0), 0);
    return [
      [model.deviceName(number), el("span", { class: "sub" }, device.model ?? device.uuid)],
      memory(device.total_mib),
      own.length.toLocaleString("en-GB"),
      known(device.total_mib) ? share(booked, device.total_mib) : memory(booked),
      peak ? memory(peak) : UNKNOWN,
      busy.length ? `${rounded(busy.reduce((a, b) => a + b, 0) / busy.length)} %` : UNKNOWN,
      String(own.filter((lease) => lease.oom).length),
    ];
  });
  fill("devices", table([["device", "nowrap"], ["memory", "n"], ["leases", "n"], ["booked on average", "n"], ["largest peak", "n"], ["busy", "n"], ["out of memory", "n"]], rows, "No device is known."));
}

function drawOoms(model, choose) {
  const list = model.leases.filter((lease) => lease.oom).reverse().slice(0, 200);
  const rows = list.map((lease) => [moment(lease.ended), jobCell(lease, choose), onDevices(lease, model), memory(lease.booked_mib), memory(lease.peak_mib), endMark(lease)]);
  fill("ooms-table", table([["when", "nowrap"], ["job", "name"], ["on"], ["booked", "n"], ["peak", "n"], ["end"]], rows, "No job ended for want of memory."));
}

function drawTypes(model) {
  const stats = new Map();
  for (const { kind, outcome, number, peak } of model.totals) {
    if (!stats.has(kind)) stats.set(kind, { kind, number: 0, outcomes: [], peak: null });
    const one = stats.get(kind);
    one.number += number;
    if (number) one.outcomes.push(`${number} ${outcome ?? "running"}`);
    if (known(peak)) one.peak = Math.max(one.peak ?? 0, peak);
  }
  const known_ = new Map();
  for (const profile of model.data.learnt) known_.set(profile.type, [...(known_.get(profile.type) ?? []), profile]);
  const middle = (leases, name) => quantile(leases.map((x) => x[name]).filter(known).sort((a, b) => a - b), 0.5);
  const list = [...stats.values()].sort((a, b) => b.number - a.number);
  const rows = list.slice(0, 200).map((one) => {
    const kind = model.kinds.get(one.kind) ?? { letter: "·", colour: null, leases: [] };
    const profiles = known_.get(one.kind) ?? [];
    const books = profiles.map((p) => `${known(p.estimate_mib) ? memory(p.estimate_mib) : "a device alone"} (${p.state})`);
    return [named(kind, one.kind), one.number.toLocaleString("en-GB"), one.outcomes.join(", "), memory(one.peak), books.length ? [...new Set(books)].join("; ") : UNKNOWN,
      memory(middle(kind.leases, "booked_mib")), duration(middle(kind.leases, "ran")), duration(middle(kind.leases, "waited"))];
  });
  const more = model.data.types_in_all - rows.length;
  fill("types-table",
    table([["type", "name"], ["leases", "n"], ["ended"], ["largest peak", "n"], ["next run books"], ["booked", "n"], ["ran", "n"], ["waited", "n"]], rows, "No type has run."),
    rows.length ? el("p", { class: "hint" }, `Booked, ran and waited are medians.${more > 0 ? ` ${count(more, "more type")} ran less often.` : ""}`) : null);
}

function drawEvents(model) {
  const saying = {
    broker: (e) => `broker ${e.state}`,
    device: (e) => `device ${e.index ?? e.uuid} is ${e.state}${e.reason ? `: ${e.reason}` : ""}`,
    disk: (e) => `disk ${e.state}${e.reason ? `: ${e.reason}` : ""}`,
    refused: (e) => `refused${e.label || e.type ? ` (${e.label || e.type})` : ""}: ${e.message ?? e.code}`,
  };
  const rows = model.data.events.slice(-100).reverse().map((event) => [moment(event.at), (saying[event.event] ?? ((e) => e.event))(event)]);
  byId("trouble").hidden = !rows.length;
  fill("events-table", table([["when", "nowrap"], ["what"]], rows, ""));
}

const PAGE = 50;

class LeaseTable {
  constructor(model, choose) {
    this.model = model;
    this.choose = choose;
    this.shown = PAGE;
    byId("filter").addEventListener("input", () => { this.shown = PAGE; this.draw(); });
    byId("more").addEventListener("click", () => { this.shown += 4 * PAGE; this.draw(); });
  }

  draw() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (x) => [x.id, x.label, x.kind.type, x.engine, endOf(x).text, x.outcome, x.probe ? "probe" : ""].join("\n").toLowerCase();
    const found = [];
    for (let i = this.model.leases.length - 1; i >= 0; i -= 1) {
      const lease = this.model.leases[i];
      if (!words.length || words.every((word) => text(lease).includes(word))) found.push(lease);
    }
    const rows = found.slice(0, this.shown).map((x) => [moment(x.from), jobCell(x, this.choose), onDevices(x, this.model), memory(x.booked_mib), memory(x.peak_mib),
      duration(x.waited), duration(x.ran ?? (x.ended === null ? this.model.now - x.from : null)), endMark(x)]);
    fill("leases-table", table([["granted", "nowrap"], ["job", "name"], ["on"], ["booked", "n"], ["peak", "n"], ["waited", "n"], ["ran", "n"], ["end"]], rows,
      words.length ? "No lease has these words." : "No lease was granted in this time."));
    byId("filtered").textContent = words.length ? `${found.length.toLocaleString("en-GB")} of ${this.model.leases.length.toLocaleString("en-GB")}` : "";
    byId("more").hidden = found.length <= this.shown;
  }
}
