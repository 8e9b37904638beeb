// The settings, the choice of the model, and what the server is doing.

import * as api from "./api.js";
import * as store from "./store.js";
import { element } from "./markdown.js";

const $ = (id) => document.getElementById(id);

// What is asked for with every message: the system message and the sampling parameters that have been chosen.
export function parameters() {
  const { theme: _, ...chosen } = store.settings();
  return chosen;
}

export function openSettings(wrong = "") {
  const values = { ...store.settings(), key: store.key() };
  for (const field of $("fields").elements) if (field.name) field.value = values[field.name] ?? "";
  $("wrong").textContent = wrong;
  if (!$("options").open) $("options").showModal();
  if (wrong) $("fields").elements.key.focus();
}

function saveSettings() {
  const values = {};
  for (const field of $("fields").elements) {
    if (!field.name || field.name === "key" || !field.value.trim()) continue;
    values[field.name] = field.type === "number" ? field.valueAsNumber : field.value;
  }
  store.saveSettings(values);
  store.saveKey($("fields").elements.key.value.trim());
  document.documentElement.dataset.theme = values.theme ?? "";
  findModels();
}

export function say(message) { $("status").textContent = message; }

// Waits until the server can answer, and lists its models.
export async function findModels() {
  try {
    const status = await api.health();
    if (status !== "ok") throw new Error(status === "loading" ? "The model is being loaded…" : `The server is ${status}.`);
    const names = await api.models(), before = $("model").value;
    $("model").replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
    if (names.includes(before)) $("model").value = before;
    $("model").disabled = false;
    say("");
  } catch (error) {
    if (error.status === 401) return openSettings("The server wants an API key.");
    say(error instanceof TypeError ? "The server cannot be reached." : error.message);
    setTimeout(findModels, 1000);
  }
}

$("settings").onclick = () => openSettings();
$("cancel").onclick = () => $("options").close();
$("fields").onsubmit = saveSettings;
document.documentElement.dataset.theme = store.settings().theme ?? "";
