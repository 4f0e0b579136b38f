// Markdown as elements. Text only ever becomes text nodes, so there is nothing to escape and no markup to smuggle in.
//
// Headings, paragraphs, lists, quotes, tables, rules, fenced code; emphasis, strong, strike, code, links. What it does not know stays as it is.

import { copy, icon, make } from "./dom.js";

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 8; // nested lists and quotes: a model can write more than a browser can draw

/** Shows a growing text in an element. Blocks that have not changed keep their elements, so a long answer costs no more per token. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.sources = [];
  }

  update(text) {
    const blocks = split(text);
    let same = 0;
    while (same < blocks.length && blocks[same] === this.sources[same]) same++;
    while (this.element.childElementCount > same) this.element.lastElementChild.remove();
    for (const block of blocks.slice(same)) this.element.append(render(block, 0));
    this.sources = blocks;
  }
}

/** The text's blocks, each as its source. */
export function split(text) {
  const blocks = [];
  let block = [];
  let fence = null;
  const end = () => {
    if (block.length) blocks.push(block.join("\n"));
    block = [];
  };
  for (const line of text.split("\n")) {
    const mark = line.match(FENCE);
    if (fence) {
      block.push(line);
      if (mark && mark[1][0] === fence[0] && mark[1].length >= fence.length && !mark[2]) {
        fence = null;
        end();
      }
    } else if (mark) {
      end();
      fence = mark[1];
      block.push(line);
    } else if (!line.trim()) {
      end();
    } else if (HEADING.test(line) || (RULE.test(line) && !ITEM.test(line))) {
      end();
      block.push(line);
      end();
    } else {
      const list = block.length > 0 && ITEM.test(block[0]);
      const quote = block.length > 0 && block[0].startsWith(">");
      if (!list && ITEM.test(line) && !/^\s{4}/.test(line)) end();
      if (quote !== line.startsWith(">") && !list) end();
      block.push(line);
    }
  }
  end();
  return join(blocks);
}

/** Items that stand apart are still one list. */
function join(blocks) {
  const joined = [];
  for (const block of blocks) {
    const last = joined.at(-1);
    const kind = listKind(block);
    if (last !== undefined && ((kind && kind === listKind(last)) || (listKind(last) && /^\s{2,}\S/.test(block) && !FENCE.test(block))))
      joined[joined.length - 1] = `${last}\n${block}`;
    else joined.push(block);
  }
  return joined;
}

function listKind(block) {
  const item = block.match(/^\s{0,3}([-*+]|\d{1,9}[.)])\s/);
  return item && (/\d/.test(item[1]) ? "ol" : "ul");
}

function render(block, depth) {
  const lines = block.split("\n");
  if (FENCE.test(lines[0])) return code(lines);
  const heading = block.match(HEADING);
  if (heading) return make(`h${Math.min(6, heading[1].length + 1)}`, {}, ...inline(heading[2]));
  if (ITEM.test(lines[0]) && depth < DEEPEST) return list(lines, depth);
  if (RULE.test(block)) return make("hr");
  if (lines[0].startsWith(">") && depth < DEEPEST) {
    const inner = lines.map((line) => line.replace(/^>\s?/, "")).join("\n");
    return make("blockquote", {}, ...split(inner).map((one) => render(one, depth + 1)));
  }
  if (lines.length > 1 && lines[0].includes("|") && DIVIDER.test(lines[1])) return table(lines);
  return make("p", {}, ...inline(lines.join("\n")));
}

function code(lines) {
  const language = lines[0].match(FENCE)[2];
  const isClosed = lines.length > 1 && FENCE.test(lines.at(-1));
  const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const button = make("button", { type: "button", class: "quiet icon small", "aria-label": "Copy the code" }, icon("M7 7h9v9H7zM13 4H4v9"));
  button.addEventListener("click", () => copy(text, button));
  const head = make("figcaption", {}, make("span", {}, language || "text"), button);
  return make("figure", { class: "code" }, head, make("pre", { tabindex: "0" }, make("code", {}, text)));
}

function list(lines, depth) {
  const first = lines[0].match(ITEM);
  const isOrdered = /\d/.test(first[2]);
  const start = isOrdered ? parseInt(first[2], 10) : 1;
  const element = make(isOrdered ? "ol" : "ul", { start: start !== 1 && String(start) });
  const indent = first[1].length;
  let item = null;
  for (const line of lines) {
    const mark = line.match(ITEM);
    if (mark && mark[1].length <= indent + 1) {
      if (item) element.append(listItem(item, depth));
      item = [mark[3]];
    } else {
      item.push(line);
    }
  }
  element.append(listItem(item, depth));
  return element;
}

function listItem(lines, depth) {
  const rest = lines.slice(1);
  const margin = Math.min(...rest.filter((line) => line.trim()).map((line) => line.match(/^\s*/)[0].length));
  const text = [lines[0], ...rest.map((line) => line.slice(Math.min(margin, line.match(/^\s*/)[0].length)))].join("\n");
  const blocks = split(text);
  if (!blocks.length) return make("li");
  const opening = render(blocks[0], depth + 1);
  const head = opening.tagName === "P" ? [...opening.childNodes] : [opening];
  return make("li", {}, ...head, ...blocks.slice(1).map((one) => render(one, depth + 1)));
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
  const row = (line, tag) => make("tr", {}, ...cells(line).map((cell) => make(tag, {}, ...inline(cell))));
  const body = make("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")));
  return make("div", { class: "wide-table", tabindex: "0" }, make("table", {}, make("thead", {}, row(lines[0], "th")), body));
}

// One pattern a piece of text may begin with, and what it becomes. Patterns are bounded: none looks further than 2,000 characters.
const SPANS = [
  [/^(`+)([^`](?:[^]{0,2000}?[^`])?)\1(?!`)/, (m) => make("code", {}, m[2].replace(/^ (.*) $/, "$1"))],
  [/^\*\*(?=\S)([^]{1,2000}?\S)\*\*/, (m, deep) => make("strong", {}, ...inline(m[1], deep))],
  [/^__(?=\S)([^]{1,2000}?\S)__(?!\w)/, (m, deep) => make("strong", {}, ...inline(m[1], deep))],
  [/^~~(?=\S)([^]{1,2000}?\S)~~/, (m, deep) => make("s", {}, ...inline(m[1], deep))],
  [/^\*(?=[^\s*])([^*]{0,2000}?[^\s*])\*(?!\*)/, (m, deep) => make("em", {}, ...inline(m[1], deep))],
  [/^_(?=[^\s_])([^_]{0,2000}?[^\s_])_(?!\w)/, (m, deep) => make("em", {}, ...inline(m[1], deep))],
  [/^\[([^\]\n]{1,500})\]\(\s*([^\s()]{1,1000}(?:\([^\s()]*\))?[^\s()]*)(?:\s+"[^"\n]*")?\s*\)/, (m, deep) => link(m[2], inline(m[1], deep))],
  [/^<(https?:\/\/[^\s<>]{1,1000})>/, (m) => link(m[1], [m[1]])],
  [/^https?:\/\/[^\s<>()[\]"'`*]{1,1000}[^\s<>()[\]"'`*.,;:!?]/, (m) => link(m[0], [m[0]])],
  [/^\\([\\`*_{}[\]()#+.!|~>-])/, (m) => m[1]],
  [/^ {2,}\n/, () => make("br")],
];

/** Nodes of a text with emphasis, code and links. */
export function inline(text, deep = 0) {
  if (deep > DEEPEST) return [text];
  const nodes = [];
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const made = "`*_~[<h\\ ".includes(text[at]) ? span(text, at, deep) : null;
    if (made === null) {
      plain += text[at++];
      continue;
    }
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(made.node);
    at += made.length;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function span(text, at, deep) {
  if (/[_h]/.test(text[at]) && at > 0 && /\w/.test(text[at - 1])) return null; // snake_case is no emphasis
  const rest = text.slice(at, at + 4200);
  for (const [pattern, build] of SPANS) {
    const match = rest.match(pattern);
    if (match) return { node: build(match, deep + 1), length: match[0].length };
  }
  return null;
}

/** A link that says where it goes; what is no web or mail address stays text. */
function link(address, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return make("span", {}, ...children);
  return make("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}
