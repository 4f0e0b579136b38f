// The client as its users make it, and what the tests ask for.
import OpenAI from "openai";

export const MODEL = "SmolLM2-135M-Instruct";
export const SEA = [{ role: "user", content: "Tell me about the sea." }];
export const GREEDY = { model: MODEL, messages: SEA, temperature: 0, max_tokens: 12 };

export const options = { baseURL: `${process.env.OCTAVO_URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 };
export const client = new OpenAI(options);

export async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}
