// Requests that show what paging does: real ones, through the API.

import {ask} from "./server.js";

const FOX = "The fox and the owl went for a walk in the snow. ";
const SMALL = 1200;  // blocks of a pool that requests of a demo can fill
const TOO_LARGE = "This pool is too large to be filled by a demo: start Quire with QUIRE_KV_MEMORY=16MiB to see it.";

const story = (name, times) => `${name}. ` + FOX.repeat(times);
const pause = (ms, signal) => new Promise((done, fail) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); fail(signal.reason); });
});

// One request; throws what the server says if it refuses.
async function complete({model, signal}, prompt, rest) {
  const body = JSON.stringify({model, prompt, ignore_eos: true, temperature: 1, ...rest});
  const response = await ask("v1/completions", {method: "POST", body, signal});
  if (!response.ok) throw new Error((await response.json()).error.message);
  await response.json();
}

async function sharing(stage) {
  const prompt = story("Once there was a long beginning", 24);
  await complete(stage, prompt + "Q: Who is it? A:", {max_tokens: 2});
  const questions = ["Who?", "Where?", "When?", "Why?", "What then?"];
  await Promise.all(questions.map(one => complete(stage, `${prompt}Q: ${one} A:`, {max_tokens: 160})));
}

const forking = stage => complete(stage, story("Four tales begin alike", 6), {n: 4, max_tokens: 160});

// Each prompt takes an eighth of the pool, and nobody asks for it again.
async function eviction(stage) {
  const times = Math.max(2, Math.floor(Math.min(stage.blocks / 8 * stage.block_size, stage.longest / 2) / 14));
  const rounds = Math.min(24, Math.ceil(stage.blocks * stage.block_size / (times * 14)) + 4);
  for (let round = 0; round < rounds; round += 1) {
    await complete(stage, story(`Tale ${round} of ${Math.random()}`, times), {max_tokens: 1});
    await pause(250, stage.signal);
  }
}

// Answers that fit at their beginnings, and not at their ends. A browser has few requests under way at once: so
// there are several answers to each.
async function preemption(stage) {
  const each = Math.min(stage.longest - 64, Math.floor(stage.blocks * stage.block_size / 8));
  const one = place => complete(stage, story(`Answer ${place} of ${Math.random()}`, 2), {n: 4, max_tokens: each});
  await Promise.all([1, 2, 3, 4].map(one));
}

export const SCENES = [
  {
    id: "sharing", title: "Prefix sharing", run: sharing,
    look: "Five questions about one long text. Its blocks turn blue-green: five tables name them, and they are kept and "
      + "computed once. The steps have only the few tokens of the questions.",
  },
  {
    id: "forking", title: "Copy-on-write", run: forking,
    look: "Four answers to one prompt. They share its full blocks. The last block is partly filled, and each "
      + "answer writes on in it: so it is copied, which flashes violet.",
  },
  {
    id: "eviction", title: "Eviction", run: eviction, filling: true,
    look: "One prompt after the other, none asked for again. Pale blocks are kept in case somebody asks. When all are "
      + "taken, the block that was used longest ago is given up, which flashes red.",
  },
  {
    id: "preemption", title: "Preemption", run: preemption, filling: true,
    look: "Answers that grow until no block is free. Then one request makes way. It is listed as preempted, its blocks "
      + "turn pale, and it goes on later with those that are still there.",
  },
];

// Why a scene cannot be shown with this worker; "" if it can.
export const refusal = (scene, worker) => scene.filling && worker.limits.blocks > SMALL ? TOO_LARGE : "";

// The first worker whose model writes text; undefined if there is none.
export function performer(picture) {
  const pools = new Set(picture.processes.filter(({info}) => info.bidirectional || info.num_labels).map(({info}) => info.model));
  return [...picture.workers.values()].find(({scheduler}) => !pools.has(picture.schedulers.get(scheduler)?.model));
}

// What a scene needs to know: the model, and the limits of one of its workers.
export function stageOf(picture, worker, signal) {
  const {model} = picture.schedulers.get(worker.scheduler);
  const lengths = picture.processes.filter(({info}) => info.model === model).map(({info}) => info.max_model_len ?? 0);
  return {model, signal, longest: Math.max(256, ...lengths), ...worker.limits};
}
