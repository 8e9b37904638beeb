// Markdown to DOM nodes. Text becomes text nodes and nothing else, so a model cannot put markup into the page.

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const DASHES = /^\s*\|?(\s*:?-+:?\s*\|)+\s*(:?-+:?\s*)?$/;
const INLINE = new RegExp([
  "(?<tick>`+)(?<code>[^`](?:[^]*?[^`])?)\\k<tick>(?!`)",
  "\\*\\*(?=\\S)(?<strong>[^]*?\\S)\\*\\*",
  "\\*(?=\\S)(?<em>[^*]*?[^*\\s])\\*",
  "(?<!\\w)_(?=\\S)(?<em2>[^_]*?[^_\\s])_(?!\\w)",
  "~~(?=\\S)(?<del>[^]*?\\S)~~",
  "\\[(?<label>[^\\]]*)\\]\\((?<to>https?://[^\\s)]+)\\)",
  "(?<url>https?://[^\\s<>\"')\\]]*[^\\s<>\"')\\].,;:!?])",
].join("|"), "g");

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

// Shows text in a node that has shown a beginning of it: what has not changed stays, so selections do too.
export function render(node, text) {
  const parts = blocks(text);
  parts.forEach((part, i) => {
    const old = node.children[i];
    if (old?.source === part.source) return;
    const made = Object.assign(part.make(), { source: part.source });
    old ? old.replaceWith(made) : node.append(made);
  });
  while (node.children.length > parts.length) node.lastChild.remove();
}

// [{source, make}]: the blocks of a text, each of which can be made into a node
export function blocks(text) {
  const lines = text.split("\n"), found = [];
  for (let i = 0; i < lines.length;) {
    if (!lines[i].trim()) { i++; continue; }
    const [count, make] = block(lines, i);
    found.push({ source: lines.slice(i, i + count).join("\n"), make });
    i += count;
  }
  return found;
}

// How many lines the block that begins at a line has, and what makes it.
function block(lines, start) {
  const line = lines[start], heading = HEADING.exec(line);
  const until = (ends) => {
    let end = start + 1;
    while (end < lines.length && !ends(lines[end], end)) end++;
    return lines.slice(start, end);
  };
  if (FENCE.test(line)) return fenced(lines, start);
  if (heading) return [1, () => element(`h${heading[1].length}`, {}, ...inline(heading[2]))];
  if (RULE.test(line)) return [1, () => element("hr")];
  if (line.startsWith(">")) {
    const quoted = until((next) => !next.startsWith(">"));
    return [quoted.length, () => nested("blockquote", quoted.map((each) => each.replace(/^> ?/, "")))];
  }
  if (ITEM.test(line)) {
    const [, margin, mark] = ITEM.exec(line);
    const other = (item) => item && item[1].length <= margin.length && /\d/.test(item[2]) !== /\d/.test(mark);
    const within = (next) => /^\s+\S/.test(next) || ITEM.test(next);
    const items = until((next, at) => RULE.test(next) || other(ITEM.exec(next.trim() ? next : lines[at + 1] ?? ""))
      || !within(next.trim() ? next : lines[at + 1] ?? ""));
    return [items.length, () => list(items)];
  }
  if (line.includes("|") && DASHES.test(lines[start + 1] ?? "")) {
    const rows = until((next) => !next.includes("|"));
    return [rows.length, () => table(rows)];
  }
  const paragraph = until((next, at) => !next.trim() || FENCE.test(next) || HEADING.test(next) || ITEM.test(next)
    || next.startsWith(">") || (next.includes("|") && DASHES.test(lines[at + 1] ?? "")));
  return [paragraph.length, () => element("p", {}, ...inline(paragraph.join("\n")))];
}

function fenced(lines, start) {
  const [, mark, language] = FENCE.exec(lines[start]);
  let end = start + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(mark) && !lines[end].trim().replaceAll(mark[0], ""))) end++;
  const text = lines.slice(start + 1, end).join("\n");
  const make = () => {
    const pre = element("pre", {}, element("code", { textContent: text }));
    if (language) pre.dataset.language = language;
    if (navigator.clipboard) {
      const copy = element("button", { type: "button", textContent: "Copy" });
      copy.onclick = () => navigator.clipboard.writeText(text).then(() => { copy.textContent = "Copied"; });
      pre.append(copy);
    }
    return pre;
  };
  return [Math.min(end + 1, lines.length) - start, make];
}

function nested(name, lines) {
  return element(name, {}, ...blocks(lines.join("\n")).map((part) => part.make()));
}

function list(lines) {
  const [, margin, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark), node = element(ordered ? "ol" : "ul");
  if (ordered) node.start = parseInt(mark, 10);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (item[1].length <= margin.length || !items.length)) items.push([item[3]]);
    else items.at(-1).push(line);
  }
  for (const [first, ...rest] of items) {
    const depth = Math.min(...rest.filter((line) => line.trim()).map((line) => line.search(/\S/)));
    const inner = rest.map((line) => line.slice(Math.min(depth, line.length)));
    node.append(element("li", {}, ...inline(first), ...blocks(inner.join("\n")).map((part) => part.make())));
  }
  return node;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (name, line) => element("tr", {}, ...cells(line).map((cell) => element(name, {}, ...inline(cell))));
  return element("table", {}, element("thead", {}, row("th", lines[0])),
    element("tbody", {}, ...lines.slice(2).map((line) => row("td", line))));
}

function inline(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const found = match.groups;
    nodes.push(text.slice(at, match.index), span(found));
    at = match.index + match[0].length;
  }
  return [...nodes, text.slice(at)].filter((node) => node !== "");
}

function span(found) {
  if (found.code !== undefined) return element("code", { textContent: found.code });
  for (const name of ["strong", "em", "em2", "del"]) {
    if (found[name] !== undefined) return element(name.replace("2", ""), {}, ...inline(found[name]));
  }
  const link = element("a", { href: found.to ?? found.url, target: "_blank", rel: "noopener noreferrer" });
  link.append(...(found.to ? inline(found.label) : [found.url]));
  return link;
}
