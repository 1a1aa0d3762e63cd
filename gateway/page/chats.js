// Conversations, kept in this browser: {id, title, changed, settings, messages}.

const PREFIX = "quire.chat.";
const store = globalThis.localStorage;

// Settings of a request. An empty one is the model's default.
export const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const EMPTY = {model: "", system: "", tools: "", ...Object.fromEntries(NUMBERS.map(name => [name, ""]))};

export function fresh(settings = EMPTY) {
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
  return {id, title: "", changed: 0, settings: {...settings}, messages: []};
}

// The newest first.
export function all() {
  const names = Object.keys(store).filter(name => name.startsWith(PREFIX));
  const found = names.map(name => load(name.slice(PREFIX.length))).filter(Boolean);
  return found.sort((one, other) => other.changed - one.changed);
}

export function load(id) {
  try {
    const chat = JSON.parse(store.getItem(PREFIX + id));
    return chat && {...chat, settings: {...EMPTY, ...chat.settings}};
  } catch {
    return null;
  }
}

// Throws if the browser has no room.
export const save = chat => store.setItem(PREFIX + chat.id, JSON.stringify(chat));
export const remove = id => store.removeItem(PREFIX + id);

// The messages as the API takes them.
export function sent({settings, messages}) {
  const out = [];
  for (const {role, content, reasoning_content, tool_calls, tool_call_id} of messages) {
    if (role !== "assistant" || content || tool_calls?.length) {
      const rest = Object.entries({reasoning_content, tool_calls, tool_call_id});
      out.push({role, content, ...Object.fromEntries(rest.filter(([, value]) => value?.length))});
    } else {
      // A question that got no answer is not asked again with the next one.
      while (out.length && out.at(-1).role !== "assistant") out.pop();
    }
  }
  return settings.system ? [{role: "system", content: settings.system}, ...out] : out;
}

export function request(chat) {
  const {model, tools} = chat.settings;
  const given = NUMBERS.filter(name => chat.settings[name] !== "");
  const numbers = given.map(name => [name, Number(chat.settings[name])]);
  return {
    model, messages: sent(chat), ...Object.fromEntries(numbers), ...(tools && {tools: functions(tools)}),
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
export const reply = ({settings: {model}}) =>
  ({role: "assistant", model, content: "", reasoning_content: "", tool_calls: []});

// Adds an event of a stream to the answer that it is part of.
export function add(message, {content, reasoning_content, tool_calls = []}) {
  message.content += content ?? "";
  message.reasoning_content += reasoning_content ?? "";
  for (const {index, id, function: {name, arguments: more = ""}} of tool_calls) {
    const call = message.tool_calls[index] ??= {id, type: "function", function: {name, arguments: ""}};
    call.function.arguments += more;
  }
}

// Calls of the last answer that have no result yet.
export function unanswered({messages}) {
  const place = messages.findLastIndex(message => message.role === "assistant");
  const results = messages.slice(place + 1);
  if (results.some(message => message.role !== "tool")) return [];
  const calls = messages[place]?.tool_calls ?? [];
  return calls.filter(call => !results.some(one => one.tool_call_id === call.id));
}

export const asJson = chat => JSON.stringify(chat, null, 2) + "\n";

export function asMarkdown({title, settings, messages}) {
  const parts = [`# ${title}`];
  const say = (who, text) => text && parts.push(`## ${who}`, text);
  say("System", settings.system);
  for (const {role, model, content, tool_calls = []} of messages) {
    say({user: "You", tool: "Result"}[role] ?? model, content);
    for (const call of tool_calls) {
      say(`Call of ${call.function.name}`, "```json\n" + call.function.arguments + "\n```");
    }
  }
  return parts.join("\n\n") + "\n";
}
