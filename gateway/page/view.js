// How the messages of a conversation look, as trees.

import {unanswered} from "./chats.js";
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

// Message number `place` of the conversation `page.chat`. `page.live`: the answer that is under way, if any;
// `page.editing`: the question that is being edited.
export function turn(place, page) {
  const message = page.chat.messages[place];
  const shown = {user: question, tool: result}[message.role] ?? answer;
  return node("article", shown(message, page), {class: `turn ${message.role}`, "data-place": `${place}`});
}

function question(message, {live, editing}) {
  const who = node("span", ["You: "], {class: "quiet"});
  if (message === editing) {
    return [
      who,
      node("textarea", [message.content], {id: "edited", "aria-label": "Message", rows: "4", dir: "auto"}),
      node("div", [button("Cancel", "cancel"), button("Send", "resend")], {class: "actions"}),
    ];
  }
  const actions = [button("Copy", "copy"), ...(live ? [] : [button("Edit", "edit")])];
  return [who, node("p", [message.content], {dir: "auto"}), node("div", actions, {class: "actions"})];
}

function result(message) {
  return [fold(`Result of ${message.name}`, [code(message.content)])];
}

function answer(message, {chat, live}) {
  const out = [node("span", ["Model: "], {class: "quiet"})];
  if (message.reasoning_content) {
    const thinking = message === live && !message.content && !message.tool_calls.length;
    const title = thinking ? "Thinking…" : "Thoughts";
    out.push(fold(title, [markdown(message, "reasoning_content")], thinking ? {open: ""} : {}));
  }
  if (message.content || message === live) out.push(markdown(message, "content"));
  for (const call of message.tool_calls) {
    out.push(fold(`Call of ${call.function.name}`, [code(call.function.arguments)]));
  }
  if (message === live) return [...out, node("span", [], {class: "cursor"})];
  const open = live ? [] : unanswered(chat).filter(call => message.tool_calls.includes(call)).map(field);
  if (open.length) out.push(node("div", [...open, button("Send results", "results")], {class: "results"}));
  if (message.error) out.push(node("div", [message.error], {class: "error", role: "alert"}));
  const actions = message.content ? [button("Copy", "copy")] : [];
  if (message === chat.messages.at(-1)) {
    actions.push(button(message.error ? "Try again" : "Regenerate", "again"));
  }
  actions.push(node("span", [message.facts ?? ""], {class: "facts"}));
  return [...out, node("div", actions, {class: "actions"})];
}

function field(call) {
  const title = `Result of ${call.function.name}`;
  return node("input", [], {"data-call": call.id, placeholder: title, "aria-label": title});
}
