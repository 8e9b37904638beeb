// The page: a list of conversations, the one that is shown, and the answer that is being made.

import * as api from "./api.js";
import * as store from "./store.js";
import { element, render } from "./markdown.js";
import { findModels, openSettings, parameters, say } from "./settings.js";

const $ = (id) => document.getElementById(id);
const log = $("log"), text = $("text");
let chat = store.newChat();
let running = null; // {chat, answer, abort}
let follow = true; // the end of the chat stays in sight

// ---- the list of conversations ----

function showList() {
  $("chats").replaceChildren(...store.chats().map((each) => {
    const name = each.title || "Empty chat";
    const open = element("button", { type: "button", className: "open", textContent: name, title: name });
    const drop = element("button", { type: "button", className: "drop", textContent: "✕", ariaLabel: `Delete ${name}` });
    open.onclick = () => show(each.id === running?.chat.id ? running.chat : each);
    drop.onclick = () => confirm(`Delete "${name}"?`) && forget(each);
    const item = element("li", { className: each.id === chat.id ? "now" : "" }, open, drop);
    if (each.id === chat.id) open.ariaCurrent = "true";
    return item;
  }));
  $("export").disabled = !chat.messages.length;
  $("export-all").disabled = !$("chats").childElementCount;
}

function forget(old) {
  if (running?.chat.id === old.id) running.abort.abort();
  store.drop(old.id);
  if (old.id === chat.id) show(store.newChat());
  else showList();
}

function keep(changed) {
  if (!store.save(changed)) say("The browser's storage is full: export and delete chats.");
  showList();
}

function openSide(shown) {
  $("side").classList.toggle("shown", shown);
  $("shade").hidden = !shown;
  $("menu").ariaExpanded = String(shown);
  if (shown) $("new").focus();
}

function download(name, type, content) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// ---- the conversation ----

function show(next) {
  chat = next;
  openSide(false);
  log.replaceChildren(...chat.messages.map(article));
  if (!chat.messages.length) {
    log.append(element("div", { className: "empty" }, element("h1", { textContent: "What is on your mind?" }),
      element("p", { textContent: "Models run on the server's computer. Chats stay in this browser." })));
  }
  follow = true;
  scroll();
  showList();
  if (matchMedia("(hover: hover)").matches) text.focus();
}

function article(message) {
  const node = element("article", { className: message.role }, element("div", { className: "body" }));
  node.ariaLabel = message.role === "user" ? "You" : "Model";
  fill(node, message);
  return node;
}

// Shows what a message has become.
function fill(node, message) {
  const body = node.querySelector(".body");
  if (message.role === "user") body.textContent = message.content;
  else render(body, message.content);
  if (message.reasoning) {
    const thought = node.querySelector(".thought") ?? element("details", { className: "thought" },
      element("summary", { textContent: "Thoughts" }), element("div"));
    thought.lastChild.textContent = message.reasoning;
    node.prepend(thought);
  }
  const busy = running?.answer === message;
  node.classList.toggle("waits", busy && !message.content);
  const tools = node.querySelector(".tools") ?? node.appendChild(element("div", { className: "tools" }));
  if (busy) tools.replaceChildren(element("span", { className: "figures", textContent: message.figures ?? "" }));
  else tools.replaceChildren(...actions(node, message));
}

function actions(node, message) {
  const button = (name, act) => element("button", { type: "button", textContent: name, onclick: act });
  const found = [];
  if (message.role === "user") found.push(button("Edit", () => edit(node, message)));
  else if (message === chat.messages.at(-1)) found.push(button("Regenerate", regenerate));
  if (navigator.clipboard) {
    const copy = button("Copy", () => navigator.clipboard.writeText(message.content).then(() => { copy.textContent = "Copied"; }));
    found.push(copy);
  }
  if (message.figures) found.push(element("span", { className: "figures", textContent: message.figures }));
  return found;
}

function edit(node, message) {
  if (running) return;
  const area = element("textarea", { value: message.content, ariaLabel: "Edit message" });
  const done = element("button", { type: "submit", className: "main", textContent: "Send" });
  const back = element("button", { type: "button", textContent: "Cancel", onclick: () => node.replaceWith(article(message)) });
  const form = element("form", { className: "edit" }, area, element("div", { className: "end" }, back, done));
  form.onsubmit = (event) => {
    event.preventDefault();
    if (area.value.trim() && !running) ask(area.value, chat.messages.indexOf(message));
  };
  area.onkeydown = (event) => {
    if (event.key === "Escape") { event.stopPropagation(); back.click(); text.focus(); }
    submitOnEnter(event, form);
  };
  node.replaceChildren(form);
  area.focus();
}

function submitOnEnter(event, form) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
}

// ---- asking ----

function ask(content, at = chat.messages.length) {
  chat.messages.splice(at, Infinity, { role: "user", content });
  keep(chat);
  show(chat);
  reply(chat);
}

function regenerate() {
  if (running) return;
  const old = chat.messages.at(-1).role === "assistant" ? chat.messages.pop() : null;
  show(chat);
  reply(chat, old);
}

// Answers the last message. before: the answer that stays if there is no new one.
async function reply(asked, before = null) {
  const answer = { role: "assistant", content: "", reasoning: "" };
  const job = { chat: asked, answer, abort: new AbortController() };
  const { system, ...chosen } = parameters();
  const messages = asked.messages.map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  running = job;
  asked.messages.push(answer);
  const node = article(answer);
  log.append(node);
  follow = true;
  const update = paced(() => {
    if (chat !== asked) return;
    const shown = node.isConnected ? node : log.lastElementChild;
    fill(shown, answer);
    scroll();
  });
  buttons();
  const problem = await collect(answer, api.answer({ model: $("model").value || null, messages, ...chosen }, job.abort.signal), update);
  running = null;
  if (!answer.content && !answer.reasoning) {
    asked.messages.pop();
    if (before) asked.messages.push(before);
  }
  if (store.chats().some((each) => each.id === asked.id)) keep(asked);
  if (chat === asked) {
    const stay = follow;
    log.replaceChildren(...asked.messages.map(article));
    if (problem) log.append(failure(problem));
    follow = stay;
    scroll();
  }
  buttons();
}

// Reads an answer to its end; the error that ended it, null if none did or it was stopped.
async function collect(answer, pieces, update) {
  const start = performance.now();
  let count = 0, first = 0;
  try {
    update();
    for await (const piece of pieces) {
      answer.content += piece.content ?? "";
      answer.reasoning += piece.reasoning ?? "";
      if (piece.timings) answer.figures = figures(piece);
      else {
        first ||= performance.now();
        count++;
        const seconds = (performance.now() - first) / 1000;
        if (seconds > 0.5) answer.figures = `${((count - 1) / seconds).toFixed(1)} tokens/s`;
      }
      update();
    }
    return null;
  } catch (error) {
    if (error.name === "AbortError") {
      answer.figures = `stopped after ${((performance.now() - start) / 1000).toFixed(1)} s`;
      return null;
    }
    if (error.status === 401) openSettings("The server wants an API key.");
    return error instanceof api.ApiError ? error.message : "The server cannot be reached.";
  }
}

function figures({ reason, timings }) {
  const rate = `${timings.predicted_n} tokens, ${timings.predicted_per_second.toFixed(1)} tokens/s`;
  return reason === "length" ? `${rate}, cut off at the longest answer or the end of the context` : rate;
}

function failure(problem) {
  const again = element("button", { type: "button", textContent: "Try again", onclick: regenerate });
  const node = element("div", { className: "failed" }, element("span", { textContent: problem }), again);
  node.role = "alert";
  return node;
}

// Calls at most once per frame.
function paced(call) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; if (running) call(); });
  };
}

function scroll() { if (follow) log.scrollTop = log.scrollHeight; }

function buttons() {
  $("send").textContent = running ? "Stop" : "Send";
  $("send").classList.toggle("stops", Boolean(running));
  grow();
}

function grow() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

// ---- events ----

$("ask").onsubmit = (event) => {
  event.preventDefault();
  if (running) return running.abort.abort();
  const message = text.value;
  if (!message.trim()) return;
  text.value = "";
  ask(message);
};
text.oninput = grow;
text.onkeydown = (event) => {
  if (!running) submitOnEnter(event, $("ask"));
  const last = chat.messages.findLastIndex((message) => message.role === "user");
  if (event.key === "ArrowUp" && !text.value && last >= 0 && !running) {
    event.preventDefault();
    edit(log.children[last], chat.messages[last]);
  }
};
document.onkeydown = (event) => {
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); show(store.newChat()); }
  if (event.key !== "Escape" || $("options").open) return;
  if ($("side").classList.contains("shown")) { openSide(false); $("menu").focus(); }
  else running?.abort.abort();
};
log.onscroll = () => { follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60; };
$("new").onclick = () => show(store.newChat());
$("menu").onclick = () => openSide(true);
$("shade").onclick = () => openSide(false);
$("export").onclick = () => download("chat.md", "text/markdown", store.asMarkdown(chat));
$("export-all").onclick = () => download("chats.json", "application/json", JSON.stringify(store.chats(), null, 2));
addEventListener("storage", (event) => { if (store.isChat(event.key)) showList(); });
addEventListener("pagehide", () => { if (running) store.save(running.chat); });

show(store.chats()[0] ?? chat);
findModels();
