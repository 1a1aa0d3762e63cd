// What is inside the deployment: all changes that the gateway has told, put together.
// gateway/upstream/picture.py says how changes look.

const STEPS_KEPT = 240;
const RATE_MS = 5000;  // the time over which rates are means

export const fresh = () => ({processes: [], ended: [], schedulers: new Map(), workers: new Map(), recent: []});

const freshWorker = (scheduler, number) => ({
  key: `${scheduler}/${number}`, scheduler, number, limits: {}, states: new Map(), flashes: new Map(),
  host_used: 0, sequences: new Map(), steps: [],
});

// Takes in a change that came at the time `now`, in ms.
export function apply(picture, change, now) {
  if (change.begin) Object.assign(picture, {...fresh(), recent: picture.recent});
  if (change.processes) Object.assign(picture, {processes: change.processes, ended: change.ended});
  const {scheduler} = change;
  if (!scheduler) return;
  const of = key => `${scheduler}/${key}`;
  if (change.away) {
    picture.schedulers.delete(scheduler);
    for (const [key, worker] of picture.workers) if (worker.scheduler === scheduler) picture.workers.delete(key);
    return;
  }
  const known = picture.schedulers.has(scheduler);
  picture.schedulers.set(scheduler, {model: change.model, totals: change.totals});
  for (const number of change.lost) picture.workers.delete(of(number));
  for (const part of change.workers) {
    const worker = picture.workers.get(of(part.number)) ?? freshWorker(scheduler, part.number);
    picture.workers.set(worker.key, worker);
    take(worker, part, now);
    // Steps of before are told to one who begins to look: they are no rate.
    const sampled = part.steps.reduce((sum, step) => sum + (step.sampled ?? 0), 0);
    if (known) picture.recent.push({at: now, sampled, steps: part.steps.length});
  }
  while (picture.recent.length && picture.recent[0].at < now - RATE_MS) picture.recent.shift();
}

function take(worker, part, now) {
  if (part.limits) worker.limits = part.limits;
  worker.host_used = part.host_used;
  part.blocks.forEach((block, place) => {
    if (part.states[place]) worker.states.set(block, part.states[place]);
    else worker.states.delete(block);
  });
  const flash = (blocks, kind) => blocks?.forEach(block => worker.flashes.set(block, {kind, at: now}));
  flash(part.evicted, "evicted");
  for (const step of part.steps) {
    flash(step.copied_to, "copied");
    flash(step.swapped_in, "brought");
  }
  for (const number of part.gone) worker.sequences.delete(number);
  for (const {kept, added, ...told} of part.sequences) {
    const before = worker.sequences.get(told.number) ?? {blocks: []};
    worker.sequences.set(told.number, {...before, ...told, blocks: [...before.blocks.slice(0, kept), ...added]});
  }
  worker.steps = [...worker.steps, ...part.steps].slice(-STEPS_KEPT);
}

// The blocks that a sequence holds: those behind an attention window are given back.
export const held = sequence => sequence.blocks.slice(sequence.dropped);

// The sequences whose tables name a block.
export const holders = (worker, block) =>
  [...worker.sequences.values()].filter(sequence => held(sequence).includes(block));

// The first of the sequences that hold each block.
export function owners(worker) {
  const found = new Map();
  for (const sequence of worker.sequences.values()) {
    for (const block of held(sequence)) if (!found.has(block)) found.set(block, sequence);
  }
  return found;
}

export function counts(worker) {
  const found = {used: 0, shared: 0, cached: 0};
  for (const state of worker.states.values()) {
    if (state >= 2) found.used += 1;
    if (state >= 4) found.shared += 1;
    if (state === 1) found.cached += 1;
  }
  return {...found, free: (worker.limits.blocks ?? 0) - found.used - found.cached};
}

export const runs = sequence => sequence.state === "prefill" || sequence.state === "decode";

// The numbers at the top, at the time `now`.
export function numbers(picture, now) {
  const sequences = [...picture.workers.values()].flatMap(worker => [...worker.sequences.values()]);
  const all = name => [...picture.schedulers.values()].reduce((sum, {totals}) => sum + totals[name], 0);
  const recent = picture.recent.filter(({at}) => at >= now - RATE_MS);
  const rate = name => recent.reduce((sum, one) => sum + one[name], 0) / (RATE_MS / 1000);
  return {
    running: sequences.filter(runs).length,
    waiting: Math.max(all("waiting"), sequences.filter(one => !runs(one)).length),  // not all that wait are told
    tokens: rate("sampled"),
    steps: rate("steps"),
    hits: all("prompt_tokens") ? all("cached_tokens") / all("prompt_tokens") : 0,
    preemptions: all("preemptions"),
  };
}

// What each tenant has: sequences that run, those that wait, and blocks.
export function tenants(picture) {
  const found = new Map();
  for (const worker of picture.workers.values()) {
    for (const sequence of worker.sequences.values()) {
      const name = sequence.tenant || "(none)";
      const one = found.get(name) ?? {name, running: 0, waiting: 0, blocks: 0};
      found.set(name, one);
      one[runs(sequence) ? "running" : "waiting"] += 1;
      one.blocks += held(sequence).length;
    }
  }
  return [...found.values()].sort((one, other) => other.blocks - one.blocks);
}
