// Gives each lease its place in the row of a device: blocks never lie on one another.
//
// Leases take their places in the order of granting. Of the gaps that are high enough, that one is best
// which a lease fills exactly, or where it lies beside one that outlasts it: so gaps stay whole. Memory
// is not handed out by address, so there may be room enough and no gap: then a lease is shown in pieces,
// as few as will do; it would otherwise stand above a device that was not full.
// Ends are stamped a moment after the memory was free, so a neighbour that ends within SLACK_S of a
// grant gives way if there is no other place.
// A probe is booked all of its device until its need is foreseen; then others begin beside it, and from
// that moment on it is shown as high as what it held.
// A place that was taken is kept: what one looks at does not jump when a lease ends.
//
// A part is [low, high, from, to]: MiB, and when; a part without times lasts as long as its lease.

const SLACK_S = 0.25;
const TINY = 1e-6; // MiB

function layOut(device, number, leases, model) {
  const limit = device.total_mib ?? Infinity;
  const blocks = [];
  let active = [];
  let top = 0;
  for (const lease of leases) {
    const to = model.end(lease);
    // What still holds memory is there for all that comes, whatever the clock says now.
    const until = model.open(lease) ? Infinity : to;
    const block = { lease, from: lease.from, to, until, parts: null };
    active = active.filter((other) => other.until > block.from);
    block.parts = lease.places?.get(number) ?? placeFor(block, active, limit, heightOf(lease, device));
    active = active.filter((other) => other.until > block.from); // some may have given way
    lease.places = (lease.places ?? new Map()).set(number, block.parts);
    top = Math.max(top, ...block.parts.map(([, high]) => high));
    active.push(block);
    blocks.push(block);
  }
  return { blocks, top };
}

const heightOf = (lease, device) => Math.max(1, lease.booked_mib ?? device.capacity_mib ?? 1);

function placeFor(block, active, limit, height) {
  const found = placeAmong(block, active, limit, height);
  if (found) return found;
  for (const other of active) if (other.until <= block.from + SLACK_S) other.to = other.until = block.from;
  const still = active.filter((other) => other.until > block.from);
  const again = placeAmong(block, still, limit, height);
  if (again) return again;
  const beside = narrowProbes(still, block.from) && placeAmong(block, still, limit, height);
  if (beside) return beside;
  const above = Math.max(limit, ...still.flatMap((other) => other.parts.map(([, high]) => high)));
  return [[above, above + height]];
}

function placeAmong(block, active, limit, height) {
  const gaps = gapsBetween(active, limit, block.from);
  const fitting = gaps.filter((gap) => gap.high - gap.low >= height - TINY);
  return fitting.length ? [inBest(fitting, block, height)] : inPieces(gaps, height);
}

function narrowProbes(active, at) {
  let any = false;
  for (const { lease, parts } of active) {
    const last = parts[parts.length - 1];
    const held = Math.max(lease.measured_mib ?? 0, lease.peak_mib ?? 0, 1);
    if (!lease.probe || parts.length > 1 || held >= last[1] - last[0]) continue;
    parts[0] = [last[0], last[1], lease.from, at];
    parts.push([last[0], last[0] + held, at, undefined]);
    any = true;
  }
  return any;
}

function inBest(gaps, block, height) {
  const ran = Math.max(block.to - block.from, 1);
  let best = null;
  let least = Infinity;
  for (const gap of gaps) {
    const spare = Math.min(gap.high - gap.low - height, 10 * height);
    for (const [low, beside] of [[gap.low, gap.below], [gap.high - height, gap.above]]) {
      if (low === Infinity) continue; // the top of a device whose size is not known
      const outlives = beside >= block.until ? 0 : Math.min((block.until - beside) / ran, 1);
      const cost = (spare < TINY ? 0 : outlives) + (0.3 * spare) / height;
      if (cost < least) {
        least = cost;
        best = [low, low + height];
      }
    }
  }
  return best;
}

function inPieces(gaps, height) {
  const parts = [];
  let rest = height;
  for (const gap of [...gaps].sort((a, b) => b.high - b.low - (a.high - a.low))) {
    const taken = Math.min(rest, gap.high - gap.low);
    parts.push([gap.low, gap.low + taken]);
    rest -= taken;
    if (rest <= TINY) return parts.sort((a, b) => a[0] - b[0]);
  }
  return null;
}

// The free parts, each with the moments until which what is below and above it is there.
function gapsBetween(active, limit, at) {
  const taken = active.flatMap((block) => block.parts
    .filter((part) => (part[3] ?? Infinity) > at)
    .map(([low, high]) => ({ low, high, until: block.until })));
  taken.sort((a, b) => a.low - b.low);
  const gaps = [];
  let low = 0;
  let below = Infinity;
  for (const part of taken) {
    if (part.low - low > TINY) gaps.push({ low, high: part.low, below, above: part.until });
    if (part.high >= low) below = part.until;
    low = Math.max(low, part.high);
  }
  if (limit - low > TINY) gaps.push({ low, high: limit, below, above: Infinity });
  return gaps;
}
