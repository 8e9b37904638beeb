// What stays in the browser: one entry per conversation, so that two tabs do not overwrite each other's.

const CHAT = "edgert.chat.", SETTINGS = "edgert.settings", KEY = "edgert.key";

function parse(text) {
  try { return JSON.parse(text); } catch { return null; }
}

// A conversation: {id, title, changed, messages: [{role, content, reasoning?, figures?}]}
export function newChat() {
  return { id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), title: "", changed: 0, messages: [] };
}

function valid(chat) {
  return chat && typeof chat.id === "string" && Array.isArray(chat.messages)
    && chat.messages.every((message) => typeof message?.content === "string");
}

// All conversations, the last changed first.
export function chats() {
  const found = Object.keys(localStorage).filter((key) => key.startsWith(CHAT));
  return found.map((key) => parse(localStorage.getItem(key))).filter(valid).sort((a, b) => b.changed - a.changed);
}

// False if the browser has no room for it.
export function save(chat) {
  chat.changed = Date.now();
  chat.title = chat.messages.find((message) => message.role === "user")?.content.trim().slice(0, 80) ?? "";
  try {
    localStorage.setItem(CHAT + chat.id, JSON.stringify(chat));
    return true;
  } catch { return false; }
}

export function drop(id) { localStorage.removeItem(CHAT + id); }

export function settings() { return parse(localStorage.getItem(SETTINGS)) ?? {}; }

export function saveSettings(values) { localStorage.setItem(SETTINGS, JSON.stringify(values)); }

export function key() { return sessionStorage.getItem(KEY) ?? ""; }

export function saveKey(value) { sessionStorage.setItem(KEY, value); }

export function isChat(storageKey) { return storageKey === null || storageKey.startsWith(CHAT); }

export function asMarkdown(chat) {
  const who = { user: "You", assistant: "Model" };
  return chat.messages.map((message) => `## ${who[message.role]}\n\n${message.content}\n`).join("\n");
}
