// The lists beside the map, as trees.

import {held, holders, runs, tenants} from "./picture.js";
import {node} from "./tree.js";

const MOST = 60;  // requests in the list, and blocks of a table

const short = text => text.length > 8 ? text.slice(0, 8) : text;
const empty = text => [node("p", [text], {class: "empty"})];
const button = (text, action, rest) => node("button", [text], {type: "button", "data-action": action, ...rest});
const number = count => count.toLocaleString("en");

export function tiles(found) {
  const shown = [
    ["running", number(found.running)], ["waiting", number(found.waiting)],
    ["tokens a second", number(Math.round(found.tokens))], ["steps a second", number(Math.round(found.steps))],
    ["prompt tokens cached", `${(100 * found.hits).toFixed(0)} %`], ["preemptions", number(found.preemptions)],
  ];
  return shown.map(([name, value]) => node("div", [node("dt", [name]), node("dd", [value])]));
}

const nameOf = ({request_id, index}) => `${short(request_id)}${index ? `·${index}` : ""}`;

const ofSequence = (worker, {number: place}) =>
  ({"data-action": "sequence", "data-worker": worker.key, "data-number": `${place}`, type: "button"});

export function requests(picture, chosen) {
  const all = [...picture.workers.values()].flatMap(worker =>
    [...worker.sequences.values()].map(sequence => ({worker, sequence})));
  all.sort((one, other) => runs(other.sequence) - runs(one.sequence) || one.sequence.number - other.sequence.number);
  if (!all.length) return empty("Nobody asks anything.");
  const rows = all.slice(0, MOST).map(({worker, sequence}) => {
    const pressed = chosen.worker === worker.key && chosen.number === sequence.number;
    return node("li", [node("button", [
      node("code", [nameOf(sequence)]),
      node("span", [sequence.state], {class: `state ${sequence.state}`}),
      node("progress", [], {value: `${sequence.computed}`, max: `${sequence.limit}`, "aria-label": "computed"}),
      node("span", [`${sequence.computed} / ${sequence.limit}`], {class: "amount"}),
    ], {...ofSequence(worker, sequence), "aria-pressed": `${pressed}`})]);
  });
  if (all.length > MOST) rows.push(node("li", [`and ${all.length - MOST} more`], {class: "empty"}));
  return [node("ul", rows, {class: "rows"})];
}

export function shares(picture) {
  const found = tenants(picture), most = Math.max(1, ...found.map(({blocks}) => blocks));
  if (!found.length) return empty("None has a request.");
  return found.slice(0, 12).map(({name, running, waiting, blocks}) => node("div", [
    node("span", [name], {title: name}),
    node("progress", [], {value: `${blocks}`, max: `${most}`, "aria-label": `Blocks of ${name}`}),
    node("span", [`${running} run${waiting ? `, ${waiting} wait` : ""}, ${blocks} blocks`], {class: "amount"}),
  ], {class: "share"}));
}

const clock = seconds => new Date(1000 * seconds).toLocaleTimeString();
const SAID = ["model", "workers", "device", "dtype", "rank", "stopping"];  // of a lease, what is for people

export function processes(picture) {
  const facts = ({info}) => SAID.filter(name => info[name]).map(name => `${name} ${info[name]}`);
  const alive = picture.processes.map(one => node("div", [
    node("span", [one.service]),
    node("span", [[`pid ${one.pid}`, ...(one.epoch > 1 ? [`lease ${one.epoch}`] : []), ...facts(one)].join(" · ")],
      {title: one.id}),
  ], {class: "process"}));
  const ended = picture.ended.slice(0, 8).map(one => node("div", [
    node("span", [one.service]),
    node("span", [`pid ${one.pid} · gone at ${clock(one.ended)}${one.info.stopping ? ", in order" : ""}`],
      {title: one.id}),
  ], {class: "process ended"}));
  return [...alive, ...ended];
}

const facts = pairs => node("dl", pairs.flatMap(([name, value]) =>
  [node("dt", [name]), node("dd", [value])]), {class: "facts-of"});

// A block that is selected. `content`: what it holds, if that is known: {text, request_id, …} or {problem}.
export function block(worker, place, content) {
  const state = worker.states.get(place) ?? 0, tables = state >> 1, cached = state & 1;
  const now = [
    tables ? `in ${tables === 1 ? "one table" : `${tables} tables`}` : cached ? "in no table" : "free",
    ...(cached ? ["can be hit"] : tables ? ["is being filled"] : []),
  ];
  const of = holders(worker, place);
  const whose = of.length
    ? [node("span", of.slice(0, 12).map(one => node("button", [nameOf(one)], ofSequence(worker, one))), {class: "links"})]
    : content?.request_id ? [`computed for ${short(content.request_id)}, which has given it back`] : [];
  const pairs = [["Block", [`${place}`]], ["Now", [now.join(", ")]], ...(whose.length ? [["Whose", whose]] : [])];
  if (content?.tokens) pairs.push(["Positions", [`${content.start} to ${content.start + content.tokens.length - 1}`]]);
  const out = [node("dl", pairs.flatMap(([name, value]) =>
    [node("dt", [name]), node("dd", value)]), {class: "facts-of"})];
  if (content?.text) out.push(node("blockquote", [content.text]));
  else if (content?.problem) out.push(...empty(content.problem));
  return out;
}

// A sequence that is selected. `link`: where its trace is shown, with {id} in place of its id.
export function sequence(worker, one, link) {
  const answer = Math.max(0, one.tokens - one.prompt_tokens);
  const out = [facts([
    ["Request", one.request_id], ["Sequence", `${one.index}`], ["State", one.state],
    ["Tenant", [one.tenant || "none", one.user].filter(Boolean).join(" / ")],
    ["Prompt", `${number(one.prompt_tokens)} tokens, ${number(one.cached_tokens)} from the cache`],
    ["Answer", `${number(answer)} of at most ${number(one.limit - one.prompt_tokens)} tokens`],
    ["Computed", `${number(one.computed)} of ${number(one.tokens)} tokens`],
    ["Table", `${held(one).length} blocks${one.dropped ? `, ${one.dropped} behind the window` : ""}`],
  ])];
  if (link && one.trace_id) {
    const href = link.replace("{id}", one.trace_id);
    out.push(node("p", [node("a", ["Its trace"], {href, rel: "noreferrer", target: "_blank"})]));
  }
  const blocks = held(one);
  out.push(node("div", blocks.slice(0, 4 * MOST).map(place => button(`${place}`, "block", {
    "data-worker": worker.key, "data-block": `${place}`,
    class: (worker.states.get(place) ?? 0) >= 4 ? "shared" : "",
  })), {class: "blocks"}));
  return out;
}

export const nothing = () => empty("Choose a block of the map, or a request.");

export const legend = mode => (mode === "request"
  ? [["free", "free"], ["cached", "cached, of nobody"]]
  : [["free", "free"], ["used", "in a table"], ["shared", "shared by 2, 3, 6 or more"], ["cached", "cached, of nobody"]])
  .concat([["copied", "just copied"], ["evicted", "just evicted"], ["brought", "just back from the host"]])
  .map(([kind, text]) => node("li", [text], {class: kind}));
