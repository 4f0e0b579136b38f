// What the page asks of its server. Addresses are relative, so that it works behind a proxy's prefix too.

const KEY = "octavo.key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
  set(value, remember) {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (value) (remember ? localStorage : sessionStorage).setItem(KEY, value);
  },
  isRemembered: () => localStorage.getItem(KEY) !== null,
};

/** An answer that is an error, or none at all. The message is for people. */
export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status; // 0: nothing answered
    this.code = code;
  }
}

export async function getJson(path, signal) {
  return (await request(path, { signal })).json();
}

export async function getText(path, signal) {
  return (await request(path, { signal })).text();
}

/**
 * The chunks of a streamed chat completion. `session`: a name of the conversation, by which a proxy can send all of it to the server that
 * has its beginning in the prefix cache. Raises ApiError; when `signal` aborts, an AbortError.
 */
export async function* streamChat(body, session, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", "x-session-id": session },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.code ?? 500, chunk.error.message, chunk.error.code);
    yield chunk;
  }
  throw brokenOff();
}

const brokenOff = () => new ApiError(0, "The connection broke off before the answer was complete.");

async function request(path, options) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it running?");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Not this server's answer, but that of a proxy in front of it.
  }
  const wait = response.headers.get("retry-after");
  let message = error.message ? sentence(error.message) : `The server answered with status ${response.status}.`;
  if (response.status === 429 && wait) message += ` Try again in ${wait} s.`;
  if (error.code === "context_length_exceeded") message += " Start a new chat, or shorten this one.";
  return new ApiError(response.status, message, error.code ?? null);
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

/** The data of each server-sent event. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const frames = rest.split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const lines = frame.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : brokenOff();
  } finally {
    reader.cancel().catch(() => {});
  }
}
