// Conversations, kept in this browser: {id, title, changed, settings, messages, leaf}.
//
// The messages are a tree: each has the place of its `parent` in the list, -1 for none. What is shown is the path
// to the message at `leaf`. A question may have `images`, which are data URLs. An answer of several models is one message: the first model's, and `beside` it the others.

import {lasts, opened} from "./store.js";

const PREFIX = "quire.chat.";
const store = opened("localStorage");

export const kept = lasts(store);

// Settings of a request. An empty one is the model's default.
export const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const EMPTY = {model: "", beside: [], system: "", tools: "", ...Object.fromEntries(NUMBERS.map(name => [name, ""]))};

export function fresh(settings = EMPTY) {
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
  return {id, title: "", changed: 0, settings: structuredClone(settings), messages: [], leaf: -1};
}

const parentOf = (messages, place) => messages[place].parent ?? place - 1;

// Places of the messages that are shown.
export function path({messages, leaf = messages.length - 1}) {
  const out = [];
  for (let place = leaf; place >= 0; place = parentOf(messages, place)) out.push(place);
  return out.reverse();
}

export const shown = chat => path(chat).map(place => chat.messages[place]);

// Adds a message after the last one that is shown.
export function append(chat, message) {
  message.parent = chat.leaf;
  chat.leaf = chat.messages.push(message) - 1;
}

// What is added next takes the place of this message. One that only failed is forgotten.
export function replace(chat, place) {
  const message = chat.messages[place], last = place === chat.messages.length - 1;
  chat.leaf = parentOf(chat.messages, place);
  if (last && columns(message).every(one => one.error && !one.content)) chat.messages.pop();
}

// Places of all messages that follow the same one, by the place of that one.
export function families(messages) {
  const out = new Map();
  messages.forEach((_, place) => {
    const parent = parentOf(messages, place);
    out.set(parent, [...out.get(parent) ?? [], place]);
  });
  return out;
}

// Shows the message `step` places beside this one, and what was last said after it. The place of what is shown.
export function turnTo(chat, place, step) {
  const all = families(chat.messages), versions = all.get(parentOf(chat.messages, place));
  const chosen = versions[versions.indexOf(place) + step] ?? place;
  chat.leaf = chosen;
  while (all.has(chat.leaf)) chat.leaf = all.get(chat.leaf).at(-1);
  return chosen;
}

// The answers that stand beside each other in a message.
export const columns = message => [message, ...message.beside ?? []];
const said = (message, model) => columns(message).find(one => one.model === model) ?? message;

// The newest first.
export function all() {
  const names = Object.keys(store).filter(name => name.startsWith(PREFIX));
  const found = names.map(name => load(name.slice(PREFIX.length))).filter(Boolean);
  return found.sort((one, other) => other.changed - one.changed);
}

export function load(id) {
  try {
    const chat = JSON.parse(store.getItem(PREFIX + id));
    return chat && {leaf: chat.messages.length - 1, ...chat, settings: {...EMPTY, ...chat.settings}};
  } catch {
    return null;
  }
}

// Without images, the oldest first, if the browser has no room for them. Throws if it has none for the texts.
export function save(chat) {
  for (let kept = chat; ; kept = lighter(kept)) {
    try {
      return store.setItem(PREFIX + chat.id, JSON.stringify(kept));
    } catch (error) {
      if (!kept.messages.some(message => message.images?.length)) throw error;
    }
  }
}

// The conversation without the images of the oldest message that has some: it says how many it had.
export function lighter(chat) {
  const messages = [...chat.messages], place = messages.findIndex(message => message.images?.length);
  const {images, ...rest} = messages[place];
  messages[place] = {...rest, lost: `${images.length} image${images.length > 1 ? "s" : ""}`};
  return {...chat, messages};
}

export const remove = id => store.removeItem(PREFIX + id);

// The messages that are shown, as the API takes them. Each model sees its own answers.
export function sent(chat, model) {
  const out = [], {settings} = chat;
  for (const message of shown(chat)) {
    const {role, content, images, reasoning_content, tool_calls, tool_call_id} = said(message, model);
    if (role !== "assistant" || content || tool_calls?.length) {
      const rest = Object.entries({reasoning_content, tool_calls, tool_call_id});
      out.push({role, content: parts(content, images), ...Object.fromEntries(rest.filter(([, value]) => value?.length))});
    } else {
      // A question that got no answer is not asked again with the next one.
      while (out.length && out.at(-1).role !== "assistant") out.pop();
    }
  }
  return settings.system ? [{role: "system", content: settings.system}, ...out] : out;
}

function parts(text, images = []) {
  if (!images.length) return text;
  const shown = images.map(url => ({type: "image_url", image_url: {url}}));
  return text ? [...shown, {type: "text", text}] : shown;
}

export function request(chat, model = chat.settings.model) {
  const {tools} = chat.settings;
  const given = NUMBERS.filter(name => chat.settings[name] !== "");
  const numbers = given.map(name => [name, Number(chat.settings[name])]);
  return {
    model, messages: sent(chat, model), ...Object.fromEntries(numbers), ...(tools && {tools: functions(tools)}),
    stream: true, stream_options: {include_usage: true, continuous_usage_stats: true},
  };
}

function functions(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`'Tools' is not JSON: ${error.message}.`);
  }
}

// An answer before its first token.
export function reply({settings: {model, beside = []}}) {
  const empty = name => ({role: "assistant", model: name, content: "", reasoning_content: "", tool_calls: []});
  return {...empty(model), ...(beside.length && {beside: beside.map(empty)})};
}

// Adds an event of a stream to the answer that it is part of.
export function add(message, {content, reasoning_content, tool_calls = []}) {
  message.content += content ?? "";
  message.reasoning_content += reasoning_content ?? "";
  for (const {index, id, function: called, custom} of tool_calls) {
    const call = message.tool_calls[index] ??= custom
      ? {id, type: "custom", custom: {name: custom.name, input: ""}}
      : {id, type: "function", function: {name: called.name, arguments: ""}};
    if (custom) call.custom.input += custom.input ?? "";
    else call.function.arguments += called.arguments ?? "";
  }
}

// What is called, and with what: the arguments of a function, or the input of a custom tool.
export const nameOf = call => (call.custom ?? call.function).name;
export const givenTo = call => call.custom?.input ?? call.function.arguments;

// Calls of the last answer that have no result yet.
export function unanswered(chat) {
  const messages = shown(chat);
  const place = messages.findLastIndex(message => message.role === "assistant");
  const results = messages.slice(place + 1);
  if (results.some(message => message.role !== "tool")) return [];
  const calls = messages[place]?.beside ? [] : messages[place]?.tool_calls ?? [];
  return calls.filter(call => !results.some(one => one.tool_call_id === call.id));
}

export const asJson = chat => JSON.stringify(chat, null, 2) + "\n";

// What is shown. The other branches are in the JSON alone.
export function asMarkdown(chat) {
  const {title, settings} = chat;
  const parts = [`# ${title}`];
  const say = (who, text) => text && parts.push(`## ${who}`, text);
  say("System", settings.system);
  for (const {role, model, content, images = [], tool_calls = []} of shown(chat).flatMap(columns)) {
    if (images.length) say("You", images.map((_, place) => `*Image ${place + 1}*`).join(" "));
    say({user: "You", tool: "Result"}[role] ?? model, content);
    for (const call of tool_calls) {
      say(`Call of ${nameOf(call)}`, "```" + (call.custom ? "" : "json") + "\n" + givenTo(call) + "\n```");
    }
  }
  return parts.join("\n\n") + "\n";
}
