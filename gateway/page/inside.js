// The page at /inside: what the gateway tells of the deployment, drawn as it comes.

import {SCENES, performer, refusal, stageOf} from "./demo.js";
import * as panels from "./panels.js";
import {apply, counts, fresh, held, numbers} from "./picture.js";
import {blockAt, drawPool, moved} from "./pool.js";
import {apiKey, ask, setApiKey, watch} from "./server.js";
import {barAt, drawSteps, told} from "./steps.js";
import {node, patch} from "./tree.js";

const AGAIN_MS = 1500, LISTS_MS = 200;
const $ = id => document.getElementById(id);
const picture = fresh();
const maps = new Map();  // by worker: the figure with its canvas
let chosen = {};  // {worker, block} or {worker, number}
let cursor = {};  // {worker, block}: where the keyboard is in a map
let content = null;  // what the chosen block holds
let bar = null;  // the chosen step, as a place of the timeline
let rights = {};
let paused = false, frame = 0, listed = 0;
let running = null;  // the scene of the demo that runs: {id, stop}
let shown = {};  // problems of scenes, by id

// --- what is shown ---

const now = () => performance.now();

function figure(worker) {
  const there = maps.get(worker.key);
  if (there) return there;
  const element = document.createElement("figure"), caption = document.createElement("figcaption");
  const canvas = document.createElement("canvas");
  element.className = "map";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `Blocks of worker ${worker.number}. The arrow keys go from block to block.`);
  canvas.addEventListener("click", event => {
    const block = blockAt(canvas, picture.workers.get(worker.key), event.offsetX, event.offsetY);
    choose(block === null ? {} : {worker: worker.key, block});
  });
  canvas.addEventListener("keydown", event => walk(event, canvas, worker.key));
  canvas.addEventListener("blur", () => { cursor = {}; later(); });
  element.append(caption, canvas);
  $("maps").append(element);
  const made = {element, caption, canvas};
  maps.set(worker.key, made);
  return made;
}

function walk(event, canvas, key) {
  const worker = picture.workers.get(key);
  if (!worker) return;
  if (event.key.startsWith("Arrow")) {
    const from = cursor.worker === key ? cursor.block : chosen.worker === key ? chosen.block : undefined;
    cursor = {worker: key, block: from === undefined ? 0 : moved(canvas, worker, from, event.key)};
    event.preventDefault();
    choose(cursor);
  } else if (event.key === "Escape") {
    choose({});
  }
}

const mapped = (worker, {used, shared, cached, free}) => {
  const say = count => count.toLocaleString("en");
  const host = worker.limits.host_blocks ? ` · ${say(worker.host_used)} of ${say(worker.limits.host_blocks)} on the host` : "";
  const {model} = picture.schedulers.get(worker.scheduler) ?? {};
  return `Worker ${worker.number}, ${model}: ${say(used)} of ${say(worker.limits.blocks ?? 0)} blocks in tables, `
    + `${say(shared)} of them shared · ${say(cached)} cached · ${say(free)} free${host}`;
};

function chosenBlocks(worker) {
  if (chosen.worker !== worker.key) return [];
  if (chosen.block !== undefined) return [chosen.block];
  const sequence = worker.sequences.get(chosen.number);
  return sequence ? held(sequence) : [];
}

function draw() {
  frame = 0;
  let flashes = false;
  for (const [key, {element}] of maps) {
    if (picture.workers.has(key)) continue;
    element.remove();
    maps.delete(key);
  }
  for (const worker of picture.workers.values()) {
    const {canvas, caption} = figure(worker);
    const at = cursor.worker === worker.key ? cursor.block : null;
    caption.textContent = mapped(worker, counts(worker));
    const options = {chosen: chosenBlocks(worker), cursor: at, mode: $("colour").value, now: now()};
    flashes = drawPool(canvas, worker, options) || flashes;
  }
  const bars = drawSteps($("steps"), steps(), bar);
  $("step").textContent = told(bars[bar ?? bars.length - 1]);
  if (now() - listed > LISTS_MS) list();
  if (flashes) later();
}

function later() {
  frame ||= requestAnimationFrame(draw);
}

// The steps of the worker that is looked at, or else of the first.
function steps() {
  const worker = picture.workers.get(chosen.worker) ?? [...picture.workers.values()][0];
  return worker?.steps ?? [];
}

function list() {
  listed = now();
  patch($("tiles"), panels.tiles(numbers(picture, now())));
  patch($("requests"), panels.requests(picture, chosen));
  patch($("tenants"), panels.shares(picture));
  patch($("processes"), panels.processes(picture));
  patch($("legend"), panels.legend($("colour").value));
  patch($("detail"), detail());
  if (!$("demo").hidden) patch($("demo"), [demo()]);
}

let last = null;  // the chosen sequence as it was known last

function detail() {
  const worker = picture.workers.get(chosen.worker);
  if (!worker) return panels.nothing();
  if (chosen.block !== undefined) return panels.block(worker, chosen.block, content);
  last = worker.sequences.get(chosen.number) ?? (last && {...last, state: "ended", blocks: []});
  return last ? panels.sequence(worker, last, rights.trace_url) : panels.nothing();
}

function choose(what) {
  [chosen, content, last] = [what, null, null];
  if (what.block !== undefined) read(what);
  list();
  later();
}

async function read(what) {
  const worker = picture.workers.get(what.worker);
  if (!worker?.states.get(what.block)) return;
  const answer = await ask(`v1/inside/${worker.key}/${what.block}`).catch(() => null);
  if (chosen !== what || !answer) return;
  const found = await answer.json();
  content = answer.ok ? found : {problem: found.error.message};
  list();
}

// --- the demo ---

function demo() {
  const worker = performer(picture);
  return node("ol", SCENES.map(scene => {
    const here = running?.id === scene.id;
    const why = shown[scene.id] ?? (worker ? refusal(scene, worker) : "No worker is there yet.");
    const off = why && !shown[scene.id] || (running && !here) ? {disabled: ""} : {};
    return node("li", [
      node("button", [here ? "Stop" : scene.title], {type: "button", class: "plain", "data-action": "scene", "data-id": scene.id, ...off}),
      node("p", [scene.look]),
      ...(why ? [node("p", [why], {class: "empty"})] : []),
    ]);
  }));
}

async function play(id) {
  if (running) { running.stop.abort(); return; }
  const scene = SCENES.find(one => one.id === id), worker = performer(picture);
  running = {id, stop: new AbortController()};
  delete shown[id];
  list();
  try {
    await scene.run(stageOf(picture, worker, running.stop.signal));
  } catch (error) {
    if (!running.stop.signal.aborted) shown[id] = error.message;
  }
  running.stop.abort();
  running = null;
  list();
}

// --- what the reader does ---

document.addEventListener("click", event => {
  const {action, worker, number, block, id} = event.target.closest("[data-action]")?.dataset ?? {};
  if (action === "sequence") choose({worker, number: Number(number)});
  if (action === "block") choose({worker, block: Number(block)});
  if (action === "scene") play(id);
});

$("steps").addEventListener("pointermove", event => { bar = barAt($("steps"), steps(), event.offsetX); later(); });
$("steps").addEventListener("pointerleave", () => { bar = null; later(); });
$("steps").addEventListener("keydown", event => {
  const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (!by) return;
  bar = Math.max(0, Math.min(steps().length - 1, (bar ?? steps().length) + by));
  later();
});
$("steps").addEventListener("blur", () => { bar = null; later(); });
$("colour").addEventListener("change", () => { list(); later(); });
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", `${paused}`);
  $("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) stop();
  else follow();
});
$("show").addEventListener("click", () => {
  $("demo").hidden = !$("demo").hidden;
  $("show").setAttribute("aria-expanded", `${!$("demo").hidden}`);
  list();
});
$("key").addEventListener("change", () => {
  setApiKey($("key").value.trim());
  stop();
  follow();
});
addEventListener("resize", later);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
document.addEventListener("visibilitychange", () => {
  // Nobody looks at a page in the background.
  if (document.hidden) stop();
  else if (!paused) follow();
});

// --- what is told ---

let following = null;  // AbortController of the stream

function stop() {
  following?.abort();
  following = null;
  say(paused ? "Paused" : "", false);
}

function say(text, on) {
  $("live").textContent = text;
  $("live").classList.toggle("on", on);
}

function complain(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

async function follow() {
  if (following) return;
  const own = following = new AbortController();
  while (!own.signal.aborted) {
    try {
      for await (const change of watch(own.signal)) {
        if (change.error) throw new Error(change.error.message);
        if (change.begin) begin();
        apply(picture, change, now());
        later();
      }
    } catch (error) {
      if (own.signal.aborted) return;
      $("locked").hidden = error.status !== 401 && error.status !== 403;
      complain(error.message);
      if (error.status === 401 || error.status === 403) {
        following = null;
        say("Not allowed", false);
        return;
      }
    }
    say("Reconnecting…", false);
    await new Promise(done => setTimeout(done, AGAIN_MS));
  }
}

async function begin() {
  say("Live", true);
  complain("");
  $("locked").hidden = true;
  rights = await ask("v1/inside/rights").then(answer => answer.json()).catch(() => ({}));
}

// Rates fall, and flashes fade, when nothing is told.
setInterval(() => { if (following) list(); }, 1000);
$("key").value = apiKey();
list();
later();
follow();
