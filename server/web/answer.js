// One answer as it comes: the request, the deltas, and what is measured of them.

import { ApiError, streamChat } from "./api.js";
import { settings } from "./store.js";
import { compact } from "./tokens.js";

const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty", "repetition_penalty"];

/** Fills `answer` ({ role, content }) with what the model says to `messages` of a session; calls `onChange` after each piece. */
export async function fill(answer, messages, session, signal, onChange) {
  const body = requestBody(messages);
  try {
    try {
      await stream(answer, body, session, signal, onChange);
    } catch (error) {
      // Near the end of the context whatever fits is welcome.
      if (error.code !== "context_length_exceeded" || body.max_tokens === undefined) throw error;
      delete body.max_tokens;
      await stream(answer, body, session, signal, onChange);
    }
  } catch (error) {
    if (error.name === "AbortError") {
      answer.stats = { ...answer.stats, tokens: answer.stats?.tokens ?? 0, reason: "stopped" };
      return;
    }
    answer.error = error.message;
    if (error instanceof ApiError && error.status === 401) answer.needsKey = true;
    else if (!(error instanceof ApiError)) throw error;
  }
}

function requestBody(messages) {
  const opening = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const said = messages.filter((one) => one.content).map(({ role, content }) => ({ role, content }));
  const body = { messages: [...opening, ...said], stream: true, stream_options: { include_usage: true } };
  for (const name of SAMPLING) if (settings[name] !== null) body[name] = settings[name];
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

async function stream(answer, body, session, signal, onChange) {
  const sent = performance.now();
  let first = null;
  const stats = { tokens: 0, rate: null, firstToken: null, reason: null };
  answer.stats = stats;
  for await (const chunk of streamChat(body, session, signal)) {
    const choice = chunk.choices[0];
    if (choice) {
      const delta = choice.delta ?? {};
      const entries = choice.logprobs?.content ?? [];
      const thought = delta.reasoning_content ?? delta.reasoning ?? "";
      if (delta.content) answer.content += delta.content;
      if (thought) answer.reasoning = (answer.reasoning ?? "") + thought;
      if (entries.length) answer.tokens = [...(answer.tokens ?? []), ...entries.map(compact)];
      if (delta.content || thought || entries.length) {
        const now = performance.now();
        first ??= now;
        stats.tokens += entries.length || 1; // without log probabilities a chunk counts as a token, until the usage says
        stats.firstToken = first - sent;
        stats.rate = rate(stats.tokens, now - first);
        stats.last = now;
      }
      if (choice.finish_reason) stats.reason = choice.finish_reason;
    }
    if (chunk.usage) {
      stats.tokens = chunk.usage.completion_tokens;
      if (first !== null) stats.rate = rate(stats.tokens, stats.last - first);
    }
    onChange();
  }
}

/** Tokens per second after the first one. */
const rate = (tokens, ms) => (tokens > 1 && ms > 0 ? (1000 * (tokens - 1)) / ms : null);
