// Requests to the gateway that serves the page.

import {opened} from "./store.js";

const keys = opened("sessionStorage");  // a key is forgotten with the tab

export const apiKey = () => keys.getItem("key") ?? "";
export const setApiKey = key => keys.setItem("key", key);

export async function ask(path, rest = {}) {
  const key = apiKey();
  if (/[^ -~]/.test(key)) {  // no header can have it
    const error = {message: "This is no API key: it has characters outside ASCII."};
    return new Response(JSON.stringify({error}), {status: 401});
  }
  const headers = {"Content-Type": "application/json", ...(key && {Authorization: `Bearer ${key}`})};
  return fetch(path, {...rest, headers});
}

async function reached(path, rest) {
  let response;
  try {
    response = await ask(path, rest);
  } catch (error) {
    throw error instanceof TypeError ? new Error("The server cannot be reached.") : error;
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

// What goes on inside the deployment. Throws an error that a reader understands.
export async function* watch(signal) {
  yield* events(await reached("v1/inside", {signal}));
}

// The events of a streamed answer. Throws an error that a reader understands.
export async function* stream(body, signal) {
  const response = await reached("v1/chat/completions", {method: "POST", body: JSON.stringify(body), signal});
  let ended = false;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    ended ||= Boolean(event.choices[0]?.finish_reason);
    yield event;
  }
  if (!ended) throw new Error("The connection ended before the answer did.");
}

async function refusal(response) {
  let text = `The server answered with status ${response.status}.`;
  try { text = (await response.json()).error.message; } catch { /* not the gateway: a proxy, for example */ }
  return Object.assign(new Error(text), {status: response.status});
}

export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error instanceof TypeError) return;
      throw error;
    }
    if (piece.done) return;
    const parts = (rest + piece.value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith(":")) continue;  // a comment: the answer is still being made
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
