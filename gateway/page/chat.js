// The chat page: one conversation on the screen, drawn anew from its values after each change.

import * as chats from "./chats.js";
import {fromFile} from "./images.js";
import {apiKey, ask, setApiKey, stream} from "./server.js";
import {node, patch} from "./tree.js";
import {button, thumbnails, turn} from "./view.js";

const $ = id => document.getElementById(id);
const box = $("message"), scroll = $("scroll");
const SETTINGS = ["model", "system", "tools", ...chats.NUMBERS];
let chat = chats.load(location.hash.slice(1)) ?? chats.fresh(chats.all()[0]?.settings);
let offered = {};  // models by name, as the gateway describes them
let running = null;  // AbortController of the answer under way, with its `message`, and `writing`: what has not ended
let editing = null;  // the message that is being edited
let attached = [];  // images of the message that is being written, as data URLs
let frame = 0;  // the animation frame that will draw

// --- what is shown ---

// Follow the answer unless the reader has scrolled up.
function draw() {
  cancelAnimationFrame(frame);
  frame = 0;
  const at_end = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  const page = {
    chat, editing, live: running?.message, writing: running?.writing,
    families: chats.families(chat.messages), open: chats.unanswered(chat),
  };
  patch($("log"), chats.path(chat).map(place => turn(place, page)));
  if (at_end) scroll.scrollTop = scroll.scrollHeight;
}

function refresh() {
  draw();
  document.title = chat.title ? `${chat.title} – Quire` : "Quire";
  $("welcome").hidden = chat.messages.length > 0;
  $("exports").hidden = !chat.messages.length;
  form();
}

// The message that is being written, and what can be done with it.
function form() {
  $("send").textContent = running ? "Stop" : "Send";
  $("send").disabled = !running && !((box.value.trim() || attached.length) && $("model").value);
  $("attach").hidden = !sees();
  patch($("attached"), thumbnails(attached));
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

function list() {
  patch($("chats"), chats.all().map(({id, title}) => node("li", [
    button(title, "open", {"data-id": id, ...(id === chat.id && {"aria-current": "true"})}),
    button("×", "delete", {"data-id": id, "aria-label": `Delete: ${title}`, title: "Delete"}),
  ])));
}

// Not on a phone, whose keyboard would cover the page.
function focus() {
  if (matchMedia("(hover: hover)").matches) box.focus();
}

function complain(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function keep(one) {
  one.changed = Date.now();
  try {
    chats.save(one);
  } catch {
    complain("This browser has no room left. Delete a conversation, or this one is lost with the tab.");
  }
  list();
}

// Whether the conversation's model sees images.
const sees = () => Boolean(offered[$("model").value]?.input_modalities.includes("image"));

async function attach(files) {
  if (!sees()) return complain("This model takes no images.");
  complain("");
  for (const file of files) {
    try {
      const added = await fromFile(file);
      attached = [...attached, added];
    } catch (error) {
      complain(error.message);
    }
    refresh();
  }
  $("said").textContent = `Images of the message: ${attached.length}`;
  focus();
}

// --- questions and answers ---

async function answer() {
  const own = chat, controller = running = new AbortController();
  const message = controller.message = chats.reply(chat);
  const before = {...chat, messages: [...chat.messages]}, answers = chats.columns(message);
  controller.writing = new Set(answers);
  chats.append(chat, message);
  complain("");
  keep(chat);
  refresh();
  scroll.scrollTop = scroll.scrollHeight;
  await Promise.all(answers.map(one => write(one, before, controller)));
  if (running === controller) running = null;
  if (chats.load(own.id)) keep(own);
  refresh();
  const name = one => answers.length > 1 ? `${one.model}: ` : "";
  $("said").textContent = answers.filter(one => !one.error).map(one => name(one) + one.content).join("\n");
  if (!document.activeElement.matches("input, textarea, select")) focus();
}

// One model's answer, as it comes. `before`: the conversation until then.
async function write(message, before, controller) {
  const asked = performance.now();
  let first = 0, newest = 0, usage = null, finish = null;
  try {
    for await (const event of stream(chats.request(before, message.model), controller.signal)) {
      usage = event.usage ?? usage;
      const [choice] = event.choices;
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      chats.add(message, choice.delta);
      newest = performance.now();
      if (usage?.completion_tokens) first ||= newest;
      frame ||= requestAnimationFrame(draw);
    }
  } catch (error) {
    if (!controller.signal.aborted) message.error = error.message;
    if (error.status === 401) $("locked").hidden = false;
  }
  const stopped = controller.signal.aborted;
  message.facts = facts({usage, finish, first: first - asked, rest: newest - first, stopped});
  controller.writing.delete(message);
  frame ||= requestAnimationFrame(draw);
}

// In words how an answer came. `first`, `rest`: milliseconds until the first token, and from it to the last.
function facts({usage, finish, first, rest, stopped}) {
  const out = [], tokens = usage?.completion_tokens;
  if (tokens) {
    out.push(`${tokens} token${tokens > 1 ? "s" : ""}`);
    // What came within a moment came at once, as after a pause of the network, and has no rate.
    if (tokens > 1 && rest >= 100) out.push(`${((tokens - 1) / rest * 1000).toFixed(1)} tokens/s`);
    out.push(`first token after ${Math.round(first)} ms`);
  }
  if (finish === "length") out.push("cut at the token limit");
  if (stopped) out.push("stopped");
  return out.join(" · ");
}

function say(text, images = attached) {
  if (running || !(text || images.length) || !$("model").value) return;
  chat.title ||= text.replace(/\s+/g, " ").slice(0, 60) || "Images";
  chats.append(chat, {role: "user", content: text, ...(images.length && {images})});
  if (images === attached) attached = [];
  box.value = "";
  editing = null;
  location.replace(`#${chat.id}`);
  answer();
}

const actions = {
  "copy-code": (_, pressed) => copy(pressed.closest(".code").querySelector("code").textContent, pressed),
  copy: ({content}, pressed) => copy(content, pressed),
  edit(message) {
    editing = message;
    refresh();
    $("edited").focus();
  },
  cancel() {
    editing = null;
    refresh();
  },
  resend(message) {
    const text = $("edited").value.trim(), images = message.images ?? [];
    if (running || !(text || images.length) || !$("model").value) return;
    chats.replace(chat, chat.messages.indexOf(message));
    say(text, images);
  },
  again(message) {
    if (running) return;
    chats.replace(chat, chat.messages.indexOf(message));
    answer();
  },
  older: message => turnTo(message, -1, "older"),
  newer: message => turnTo(message, 1, "newer"),
  // The conversation goes on with one model's answer.
  choose(message, pressed) {
    const {beside, ...first} = message;
    const {parent, ...one} = [first, ...beside][pressed.closest("[data-column]").dataset.column];
    chats.replace(chat, chat.messages.indexOf(message));
    chats.append(chat, one);
    chat.settings.model = one.model;
    chat.settings.beside = [];
    pick();
    keep(chat);
    refresh();
    focus();
  },
  results(message, pressed) {
    const open = chats.unanswered(chat).some(call => message.tool_calls.includes(call));
    if (running || !open) return;  // another tab may have sent them
    for (const field of pressed.parentElement.querySelectorAll("input")) {
      const call = message.tool_calls.find(({id}) => id === field.dataset.call);
      chats.append(chat, {role: "tool", tool_call_id: call.id, name: chats.nameOf(call), content: field.value});
    }
    answer();
  },
};

function turnTo(message, step, action) {
  if (running) return;
  const place = chats.turnTo(chat, chat.messages.indexOf(message), step);
  editing = null;
  keep(chat);
  refresh();
  const arrows = $("log").querySelector(`[data-place="${place}"] .versions`);
  arrows.querySelector(`[data-action="${action}"]:enabled, button:enabled`).focus();
  arrows.scrollIntoView({block: "nearest"});
}

async function copy(text, pressed) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // browsers have it for pages of localhost and of TLS alone
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    copied = document.execCommand("copy");
    field.remove();
  }
  pressed.textContent = copied ? "Copied" : "Not allowed";
  setTimeout(() => { pressed.textContent = "Copy"; }, 1500);
}

function show(one) {
  running?.abort();
  editing = null;
  attached = [];
  chat = one;
  history.replaceState(null, "", chat.messages.length ? `#${chat.id}` : location.pathname);
  fill();
  complain("");
  list();
  refresh();
  scroll.scrollTop = scroll.scrollHeight;
  menu(false);
  focus();
}

function fill() {
  for (const name of SETTINGS) $(name).value = chat.settings[name];
  pick();
}

// Another tab may have gone on with this conversation: then it is shown, or while this tab has an answer under way,
// this one becomes a conversation of its own.
function renew() {
  const newer = chats.load(chat.id);
  if (!(newer?.changed > chat.changed)) return;
  if (running && newer.messages.length === chat.messages.length && newer.leaf === chat.leaf) {
    chat.settings = newer.settings;
  } else if (running) {
    chat.id = chats.fresh().id;
    location.replace(`#${chat.id}`);
    return keep(chat);
  } else {
    editing = newer.messages[chat.messages.indexOf(editing)] ?? null;
    chat = newer;
  }
  fill();
  refresh();
}

function menu(open) {
  $("side").classList.toggle("open", open);
  $("menu").setAttribute("aria-expanded", `${open}`);
}

function download(text, type, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = `${chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The conversation's model, or the first one if that is not offered (any more).
function pick() {
  const names = Object.keys(offered);
  if (names.length && !offered[chat.settings.model]) [chat.settings.model] = names;
  if (names.length) $("model").value = chat.settings.model;
  if (names.length) chat.settings.beside = chat.settings.beside.filter(name => offered[name]);
  compare();
  hint();
}

// The other models that may answer beside the conversation's.
function compare() {
  const {model, beside} = chat.settings;
  chat.settings.beside = beside.filter(name => name !== model);
  const others = Object.keys(offered).filter(name => name !== model);
  $("compare").hidden = !others.length;
  patch($("others"), others.map(name => node("label", [node("input", [], {type: "checkbox", value: name}), name])));
  for (const check of $("others").querySelectorAll("input")) check.checked = beside.includes(check.value);
  const count = chat.settings.beside.length;
  $("count").textContent = count ? `+ ${count}` : "Compare";
}

// What counts where a setting is left empty: the model's own default, else the API's.
function hint() {
  const own = offered[$("model").value]?.defaults ?? {};
  const usual = {temperature: 1, top_p: 1, max_tokens: "as many as fit", seed: "random"};
  for (const name of chats.NUMBERS) $(name).placeholder = own[name] ?? usual[name];
}

async function models() {
  const picker = $("model");
  let status = 0;
  try {
    const response = await ask("v1/models");
    status = response.status;
    const models = (await response.json()).data.filter(model => model.generates);
    offered = Object.fromEntries(models.map(model => [model.id, model]));
  } catch {
    offered = {};
  }
  const names = Object.keys(offered);
  picker.replaceChildren(...names.map(name => new Option(name, name)));
  if (!names.length) picker.append(new Option(status === 401 ? "needs a key" : "no model yet", ""));
  $("locked").hidden = status !== 401 && !apiKey();
  pick();
  refresh();
  if (!names.length && status !== 401) setTimeout(models, 1500);
}

// --- what the reader does ---

$("form").addEventListener("submit", event => {
  event.preventDefault();
  if (running) return running.abort();
  renew();
  say(box.value.trim());
});
box.addEventListener("input", form);
// Whether the key is one of an input method's. Safari's Enter that ends it comes after it has ended, with this code.
const composing = event => event.isComposing || event.keyCode === 229;

document.addEventListener("keydown", event => {
  if (event.key === "Escape") {
    if (running) running.abort();
    else if (editing) actions.cancel();
    $("compare").open = false;
    menu(false);
  }
  if (event.key !== "Enter" || event.shiftKey || composing(event)) return;
  if (event.target === box) {
    event.preventDefault();
    if (!running) $("form").requestSubmit();
  } else if (event.target.id === "edited") {
    event.preventDefault();
    renew();
    if (editing) actions.resend(editing);
  } else event.target.closest(".results")?.querySelector("button").click();
});
$("log").addEventListener("click", event => {
  const pressed = event.target.closest("[data-action]");
  if (!pressed) return;
  const {place} = pressed.closest(".turn").dataset;
  const {column} = pressed.closest("[data-column]")?.dataset ?? {};
  const before = chat.messages[place], {action} = pressed.dataset;
  renew();
  const message = chat.messages[place];
  // Another tab may have put another one in the place of an answer that had failed.
  if (message !== before && JSON.stringify(message) !== JSON.stringify(before)) return;
  actions[action](action === "copy" && column ? chats.columns(message)[column] : message, pressed);
});
$("chats").addEventListener("click", event => {
  const {action, id} = event.target.dataset;
  if (action === "open" && id === chat.id) menu(false);
  else if (action === "open") show(chats.load(id) ?? chats.fresh(chat.settings));
  if (action === "delete" && confirm("Delete this conversation?")) {
    chats.remove(id);
    if (id === chat.id) show(chats.fresh(chat.settings));
    else list();
  }
});
$("fresh").addEventListener("click", () => show(chats.fresh(chat.settings)));
$("attach").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  const files = [...$("files").files];
  $("files").value = "";  // the same file can be chosen once more
  await attach(files);
});
$("attached").addEventListener("click", event => {
  const {image} = event.target.dataset;
  if (image === undefined) return;
  attached = attached.filter((_, place) => place !== Number(image));
  refresh();
  box.focus();
});
box.addEventListener("paste", event => {
  const files = [...event.clipboardData.files];
  if (!files.length || event.clipboardData.types.includes("text/plain")) return;
  event.preventDefault();
  attach(files);
});
// Whatever is dropped: the browser would leave the page for the file.
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, event => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", kind === "dragover" && sees());
    if (kind === "drop") attach([...event.dataTransfer.files]);
  });
}
for (const idea of $("ideas").children) idea.addEventListener("click", () => say(idea.textContent));
for (const name of SETTINGS) {
  $(name).addEventListener("change", () => {
    const {value} = $(name);
    renew();
    chat.settings[name] = $(name).value = value;
    compare();
    hint();
    refresh();
    if (chat.messages.length) keep(chat);
  });
}
$("others").addEventListener("change", () => {
  const beside = [...$("others").querySelectorAll(":checked")].map(({value}) => value);
  renew();
  chat.settings.beside = beside;
  compare();
  if (chat.messages.length) keep(chat);
});
document.addEventListener("click", event => { if (!$("compare").contains(event.target)) $("compare").open = false; });
$("menu").addEventListener("click", () => menu(!$("side").classList.contains("open")));
$("more").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("more").setAttribute("aria-expanded", `${!$("settings").hidden}`);
});
$("as-markdown").addEventListener("click", () => download(chats.asMarkdown(chat), "text/markdown", "md"));
$("as-json").addEventListener("click", () => download(chats.asJson(chat), "application/json", "json"));
$("key").addEventListener("change", () => {
  setApiKey($("key").value.trim());
  models();
});
addEventListener("pagehide", () => { if (running) keep(chat); });
addEventListener("storage", () => {  // another tab has changed a conversation
  renew();
  list();
});

show(chat);
if (!chats.kept) complain("This browser lets the page keep nothing: conversations are lost when it is closed or loaded anew.");
models();
