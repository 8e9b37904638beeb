// The server's API: models, and answers as they come.

import { key } from "./store.js";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  return key() ? { ...more, authorization: `Bearer ${key()}` } : more;
}

async function checked(response) {
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw new ApiError(response.status, told?.error?.message ?? `the server answered ${response.status}`);
}

// "ok", or what the server does before it can answer
export async function health() {
  const response = await fetch("health");
  return (await response.json().catch(() => ({ status: "not there" }))).status;
}

export async function models() {
  const response = await checked(await fetch("v1/models", { headers: headers() }));
  return (await response.json()).data.map((model) => model.id);
}

// Pieces of an answer: {content?, reasoning?}, at last {reason, timings}.
export async function* answer(request, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const response = await checked(await fetch("v1/chat/completions", {
    method: "POST", body, signal, headers: headers({ "content-type": "application/json" }),
  }));
  for await (const event of events(response.body)) {
    if (event.error) throw new ApiError(event.error.code ?? 500, event.error.message);
    const choice = event.choices[0];
    if (choice?.delta.content) yield { content: choice.delta.content };
    if (choice?.delta.reasoning_content) yield { reasoning: choice.delta.reasoning_content };
    if (choice?.finish_reason) yield { reason: choice.finish_reason, timings: event.timings };
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "the connection to the server broke off");
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
