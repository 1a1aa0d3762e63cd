// How the messages of a conversation look, as trees.

import {columns, families, givenTo, nameOf, unanswered} from "./chats.js";
import {parse} from "./markdown.js";
import {node} from "./tree.js";

export const button = (text, action, rest = {}) =>
  node("button", [text], {type: "button", "data-action": action, ...rest});
const fold = (title, children, rest = {}) => node("details", [node("summary", [title]), ...children], rest);
const code = text => node("pre", [node("code", [text])]);

const parsed = new WeakMap();  // of each message, what was parsed last

function markdown(message, field) {
  const kept = parsed.get(message) ?? {};
  parsed.set(message, kept);
  if (kept[field]?.text !== message[field]) {
    const tree = node("div", parse(message[field]), {class: "markdown", dir: "auto"});
    kept[field] = {text: message[field], tree};
  }
  return kept[field].tree;
}

// What `make` makes of a list, which it is asked for once: addresses of images are long, and compared for nothing.
function once(make) {
  const made = new WeakMap();
  return list => {
    if (!made.has(list)) made.set(list, make(list));
    return made.get(list);
  };
}

const image = (src, place, {length}) => node("img", [], {src, alt: `Image ${place + 1} of ${length}`});
const pictures = once(images => node("div", images.map(image), {class: "pictures"}));
const picturesOf = ({images}) => images?.length ? [pictures(images)] : [];

// The images of a message that is being written, each with a button that removes it.
export const thumbnails = once(images => images.map((src, place) => node("li", [
  image(src, place, images),
  button("×", "detach", {"data-image": `${place}`, "aria-label": `Remove image ${place + 1}`, title: "Remove"}),
])));

// Message number `place` of the conversation `page.chat`. `page.live`: the message that is under way, if any;
// `page.writing`: the answers in it that have not ended; `page.editing`: the question that is being edited;
// `page.families`: those of the messages; `page.open`: the calls that have no result yet.
export function turn(place, page) {
  const message = page.chat.messages[place];
  const kind = {user: question, tool: result}[message.role] ?? (message.beside ? answers : answer);
  const versions = page.live ? [] : arrows(place, message, page);
  const inner = kind(message, {...page, versions});
  return node("article", inner, {class: `turn ${message.role}`, "data-place": `${place}`});
}

// Between the versions of a message: ‹ 2/3 ›.
function arrows(place, message, {chat, families: known = families(chat.messages)}) {
  const versions = known.get(message.parent ?? place - 1), number = versions.indexOf(place) + 1;
  if (versions.length < 2) return [];
  const arrow = (text, action, name, end) =>
    button(text, action, {"aria-label": `${name} version`, ...(number === end && {disabled: ""})});
  const group = {class: "versions", role: "group", "aria-label": `Version ${number} of ${versions.length}`};
  return [node("span", [
    arrow("‹", "older", "Previous", 1), `${number}/${versions.length}`, arrow("›", "newer", "Next", versions.length),
  ], group)];
}

function question(message, {live, editing, versions}) {
  const who = node("span", ["You: "], {class: "quiet"});
  if (message === editing) {
    return [
      who, ...picturesOf(message),
      node("textarea", [message.content], {id: "edited", "aria-label": "Message", rows: "4", dir: "auto"}),
      node("div", [button("Cancel", "cancel"), button("Send", "resend")], {class: "actions"}),
    ];
  }
  const actions = [...versions, button("Copy", "copy"), ...(live ? [] : [button("Edit", "edit")])];
  const text = message.content ? [node("p", [message.content], {dir: "auto"})] : [];
  const lost = message.lost ? [node("span", [`${message.lost} not kept: this browser had no room`], {class: "facts"})] : [];
  return [who, ...picturesOf(message), ...text, node("div", [...lost, ...actions], {class: "actions"})];
}

function result(message) {
  return [fold(`Result of ${message.name}`, [code(message.content)])];
}

// Of several models, each in a column of its own.
function answers(message, page) {
  const each = columns(message).map((one, column) => {
    const title = node("h2", [one.model]);
    return node("section", [title, ...body(one, page), footer(one, page, [button("Go on with this", "choose")])],
      {"aria-label": one.model, "data-column": `${column}`});
  });
  const actions = page.live ? [] : [...page.versions, button("Regenerate", "again")];
  return [node("div", each, {class: "columns", tabindex: "0"}), node("div", actions, {class: "actions"})];
}

function answer(message, page) {
  const who = node("span", ["Model: "], {class: "quiet"});
  const again = button(message.error ? "Try again" : "Regenerate", "again");
  return [who, ...body(message, page), footer(message, page, [again], page.versions)];
}

const written = (message, {live, writing}) => writing ? writing.has(message) : message === live;

function body(message, page) {
  const out = [], {open: calls = unanswered(page.chat)} = page, live = written(message, page);
  if (message.reasoning_content) {
    const thinking = live && !message.content && !message.tool_calls.length;
    const title = thinking ? "Thinking…" : "Thoughts";
    out.push(fold(title, [markdown(message, "reasoning_content")], thinking ? {open: ""} : {}));
  }
  if (message.content || live) out.push(markdown(message, "content"));
  for (const call of message.tool_calls) {
    out.push(fold(`Call of ${nameOf(call)}`, [code(givenTo(call))]));
  }
  if (live) return [...out, node("span", [], {class: "cursor"})];
  const open = page.live ? [] : calls.filter(call => message.tool_calls.includes(call)).map(field);
  if (open.length) out.push(node("div", [...open, button("Send results", "results")], {class: "results"}));
  if (message.error) out.push(node("div", [message.error], {class: "error", role: "alert"}));
  return out;
}

// `more`: buttons for when nothing is being written.
function footer(message, page, more, versions = []) {
  if (written(message, page)) return node("div", [], {class: "actions"});
  const actions = message.content ? [button("Copy", "copy")] : [];
  if (!page.live) actions.push(...more);
  const facts = node("span", [message.facts ?? ""], {class: "facts"});
  return node("div", [...versions, ...actions, facts], {class: "actions"});
}

function field(call) {
  const title = `Result of ${nameOf(call)}`;
  return node("input", [], {"data-call": call.id, placeholder: title, "aria-label": title});
}
