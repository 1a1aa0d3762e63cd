// Markdown as language models write it (CommonMark and GitHub's tables), parsed into trees. Formulas of LaTeX stay as
// they are written.
//
// A text may be hostile: HTML stays text, links lead to the web or to a mail, nothing is loaded, and time and
// depth are bounded. What is unfinished, as in a stream, is shown as far as it goes.

import {node} from "./tree.js";

const DEEPEST = 12;  // quotes and lists within each other
const MOST_OPEN = 30;  // marks of emphasis and brackets that wait for their end

const FENCE = /^( *)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: (.*))?$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: (.*))?$/;
const FORMULA = /^ *(\\\[(?!\d+\\\])|\$\$)(.*)$/;  // \[1\] is a number in brackets

export function parse(text) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const [block, next] =
      fence(lines, at) ?? formula(lines, at) ?? heading(lines, at) ?? rule(lines, at) ?? quote(lines, at, depth) ??
      list(lines, at, depth) ?? table(lines, at) ?? paragraph(lines, at);
    found.push(block);
    at = next;
  }
  return found;
}

// Each of these reads the block that begins at line `at`: [its tree, the line after it]. Null: there is none.

function fence(lines, at) {
  const [, indent, mark, info] = FENCE.exec(lines[at]) ?? [];
  if (!mark) return null;
  const own = [];
  for (at++; at < lines.length; at++) {
    const end = lines[at].trim();
    if (end.length >= mark.length && end === mark[0].repeat(end.length)) break;
    own.push(lines[at].slice(Math.min(indent.length, margin(lines[at]))));
  }
  const bar = node("div", [
    node("span", [info.trim().split(" ")[0]]),
    node("button", ["Copy"], {type: "button", "data-action": "copy-code"}),
  ], {class: "bar"});
  return [node("div", [bar, node("pre", [node("code", [own.join("\n")])])], {class: "code"}), at + 1];
}

// On lines of its own, empty ones among them. What looks like an item or a table in it is none.
function formula(lines, at) {
  const [, mark, text] = FORMULA.exec(lines[at]) ?? [];
  if (!mark) return null;
  const end = mark === "$$" ? "$$" : "\\]", own = [lines[at].trim()];
  for (let line = text; !line.includes(end); own.push(line)) {
    line = lines[++at]?.trim();
    if (line === undefined || line.startsWith("\\[")) return null;
  }
  if (!own.at(-1).endsWith(end)) return null;  // something follows in its line
  return [node("p", inline(own.join("\n"))), at + 1];
}

function heading(lines, at) {
  const [, marks, text = ""] = HEADING.exec(lines[at]) ?? [];
  if (!marks) return null;
  const level = Math.min(marks.length + 2, 6);  // the page itself has the two highest ones
  return [node(`h${level}`, inline(text.trim().replace(/ #+$/, ""))), at + 1];
}

function rule(lines, at) {
  return /^(-{3,}|\*{3,}|_{3,})$/.test(lines[at].replaceAll(" ", "")) ? [node("hr"), at + 1] : null;
}

function quote(lines, at, depth) {
  if (depth === DEEPEST || !QUOTE.test(lines[at])) return null;
  const own = [];
  for (; at < lines.length && lines[at].trim(); at++) {
    if (!QUOTE.test(lines[at]) && begins(lines, at)) break;
    own.push(lines[at].replace(QUOTE, ""));
  }
  return [node("blockquote", blocks(own, depth + 1)), at];
}

function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]) ?? [];
  if (depth === DEEPEST || !mark) return null;
  const ordered = mark.length > 1, items = [];
  let blank = false;
  for (; at < lines.length; at++) {
    const line = lines[at].replace(/^\t+/, tabs => "    ".repeat(tabs.length));
    const inner = margin(line) >= indent.length + 2;
    const [, , next, text = ""] = (!inner && !rule(lines, at) && ITEM.exec(line)) || [];
    if (!line.trim()) items.at(-1).push("");
    else if (next && next.length > 1 === ordered) items.push([task(text)]);
    else if (inner) items.at(-1).push(line.slice(Math.min(margin(line), indent.length + mark.length + 1)));
    else if (next || blank || begins(lines, at)) break;
    else items.at(-1).push(line);
    blank = !line.trim();
  }
  const entries = items.map(own => {
    const [first, ...rest] = blocks(own, depth + 1);
    return node("li", first?.tag === "p" ? [...first.children, ...rest] : first ? [first, ...rest] : []);
  });
  const start = parseInt(mark);
  return [node(ordered ? "ol" : "ul", entries, ordered && start !== 1 ? {start: `${start}`} : {}), at];
}

function table(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return null;
  const head = cells(lines[at]), ruled = cells(lines[at + 1]);
  if (head.length !== ruled.length || !ruled.every(cell => /^:?-+:?$/.test(cell))) return null;
  const sides = ruled.map(cell => (!cell.endsWith(":") ? "left" : cell.startsWith(":") ? "center" : "right"));
  const cell = (tag, text, place) => node(tag, inline(text), {class: sides[place]});
  const row = (tag, texts) =>
    node("tr", texts.slice(0, head.length).map((text, place) => cell(tag, text, place)));
  const body = [];
  for (at += 2; lines[at]?.includes("|"); at++) body.push(row("td", cells(lines[at])));
  const whole = node("table", [node("thead", [row("th", head)]), node("tbody", body)]);
  return [node("div", [whole], {class: "wide"}), at];
}

function paragraph(lines, at) {
  const own = [lines[at]];
  for (at++; at < lines.length && lines[at].trim() && !begins(lines, at); at++) own.push(lines[at]);
  return [node("p", inline(own.map(line => line.trim()).join("\n").replace(/\\$/, ""))), at];
}

// Whether a block begins here that needs no empty line before it.
function begins(lines, at) {
  const mark = ITEM.exec(lines[at])?.[2];
  return [FENCE, HEADING, QUOTE].some(form => form.test(lines[at])) || rule(lines, at) || table(lines, at)
    || formula(lines, at)
    || (mark && (mark.length === 1 || parseInt(mark) === 1));
}

const task = text => text.replace(/^\[ \] /, "☐ ").replace(/^\[x\] /i, "☑ ");

const margin = line => line.search(/[^ ]|$/);

const cells = line =>
  line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/)
    .map(cell => cell.trim().replaceAll("\\|", "|"));

// Within a line. No part of it goes over the same characters twice, whatever the text.
const TOKEN = new RegExp([
  /(?<formula>\\\((?:[^\\]|\\[^()])+\\\)|\\\[(?!\d+\\\])(?:[^\\]|\\[^[\]])+\\\]|\$\$(?:[^$\\]|\\.|\$(?!\$))+\$\$)/,
  /\\(?<escaped>[!-/:-@[-`{-~])/,
  /(?<!`)(?<ticks>`+)(?!`)(?<code>.+?)(?<!`)\k<ticks>(?!`)/,
  /<(?<angled>(?:https?:\/\/|mailto:)[^\s<>]+)>/,
  /(?<bare>https?:\/\/(?:\([^\s()<>"`[\]]*\)|[^\s()<>"`[\]])+(?<![.,;:!?'*_~]))/,
  /(?<broken>\\?\n|<br ?\/?>)/,
  /(?<bracket>!?\[)/,
  /(?<end>\](?:\(<?(?<url>(?:\([^\s()<>]*\)|[^\s()<>])+)>?(?:[ \n]"[^"\n]*")?\))?)/,
  /(?<run>\*+|_+|~~)/,
].map(part => part.source).join("|"), "gs");

function inline(text) {
  const out = [];
  const open = [];  // marks that wait for their end: {mark, size, at: place in `out`}
  let at = 0;
  for (const token of text.matchAll(TOKEN)) {
    const {formula, escaped, code, angled, bare, broken, bracket, end, url, run} = token.groups;
    out.push(text.slice(at, token.index));
    at = token.index + token[0].length;
    if (formula) out.push(...formula.split("\n").flatMap(line => [node("br"), line]).slice(1));
    else if (escaped) out.push(escaped);
    else if (code) out.push(node("code", [code.replaceAll("\n", " ").replace(/^ (.*\S.*) $/, "$1")]));
    else if (angled ?? bare) out.push(linked(angled ?? bare, [angled ?? bare]) ?? token[0]);
    else if (broken) out.push(node("br"));
    else if (bracket) {
      if (open.length < MOST_OPEN) open.push({mark: "[", at: out.length});
      out.push(bracket);
    } else if (end) {
      const place = open.findLastIndex(each => each.mark === "[");
      const link = place >= 0 && url && linked(url, merged(out.slice(open[place].at + 1)));
      if (link) {
        out.splice(open[place].at, Infinity, link);
        open.splice(place);
      } else {
        if (place >= 0) open.splice(place, 1);
        out.push(end);
      }
    } else emphasis(run, text[token.index - 1] ?? " ", text[at] ?? " ", out, open);
  }
  return merged([...out, text.slice(at)]);
}

function emphasis(run, before, after, out, open) {
  const mark = run[0], inWord = /[\p{L}\p{N}]/u;
  let opens = /\S/.test(after), closes = /\S/.test(before), size = run.length;
  if (mark === "_") [opens, closes] = [opens && !inWord.test(before), closes && !inWord.test(after)];
  if (size > 3) opens = closes = false;
  for (let place = open.length - 1; closes && size && place >= 0; place--) {
    const entry = open[place];
    if (entry.mark !== mark) continue;
    while (size && entry.size) {
      const taken = Math.min(size, entry.size, 2);
      const tag = mark === "~" ? "del" : taken === 2 ? "strong" : "em";
      out.splice(entry.at + 1, Infinity, node(tag, merged(out.slice(entry.at + 1))));
      entry.size -= taken;
      size -= taken;
      out[entry.at] = mark.repeat(entry.size);
    }
    open.splice(entry.size ? place + 1 : place);
  }
  if (!size) return;
  if (opens && open.length < MOST_OPEN) open.push({mark, size, at: out.length});
  out.push(mark.repeat(size));
}

// A link to elsewhere; null for an address that is none. An image is a link, too: nothing is loaded.
function linked(address, children) {
  try {
    const {protocol, href} = new URL(address);
    if (!["http:", "https:", "mailto:"].includes(protocol)) return null;
    return node("a", unlinked(children), {href, title: href, target: "_blank", rel: "noopener noreferrer"});
  } catch {
    return null;
  }
}

// Without links: there is none within another.
const unlinked = children => merged(children.flatMap(child => {
  if (typeof child === "string") return child;
  const inner = unlinked(child.children);
  return child.tag === "a" ? inner : node(child.tag, inner, child.attributes);
}));

function merged(children) {
  const out = [];
  for (const child of children) {
    if (typeof child === "string" && typeof out.at(-1) === "string") out.push(out.pop() + child);
    else if (child) out.push(child);
  }
  return out;
}
