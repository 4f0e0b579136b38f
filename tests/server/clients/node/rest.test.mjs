import assert from "node:assert/strict";
import { test } from "node:test";
import { toFile } from "openai";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { all, client, MODEL } from "./setup.mjs";

const ASKED = { model: MODEL, input: "Tell me about the sea.", temperature: 0, max_output_tokens: 12 };

test("a response has its text, and continues the one before", async () => {
  const first = await client.responses.create(ASKED);
  assert.deepEqual([first.status, first.incomplete_details.reason, first.usage.output_tokens], ["incomplete", "max_output_tokens", 12]);
  assert.ok(first.output_text);
  const second = await client.responses.create({ ...ASKED, input: "Go on.", previous_response_id: first.id });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
  assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
  assert.ok((await all(client.responses.inputItems.list(second.id, { limit: 1 }))).length >= 3, "pages are turned");
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), { status: 404, code: "response_not_found" });
  assert.ok((await client.responses.inputTokens.count({ model: MODEL, input: ASKED.input })).input_tokens > 5);
});

test("the events of a stream add up to the whole", async () => {
  const text = (await client.responses.create(ASKED)).output_text;
  const events = await all(await client.responses.create({ ...ASKED, stream: true }));
  assert.equal(events[0].type, "response.created");
  assert.equal(events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""), text);
  assert.equal(events.at(-1).response.output_text ?? events.at(-1).response.output[0].content[0].text, text);
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  const helper = client.responses.stream({ ...ASKED, input: "Hi", max_output_tokens: 64 });
  let pieces = "";
  helper.on("response.output_text.delta", (event) => (pieces += event.delta));
  const final = await helper.finalResponse();
  assert.equal(final.output_text, pieces);
  assert.equal(final.status, "completed");
});

const City = z.object({ city: z.string().max(10) });

test("responses are parsed by zod: the text, and the arguments of calls", async () => {
  const parsed = await client.responses.parse({ ...ASKED, max_output_tokens: 60, text: { format: zodTextFormat(City, "city") } });
  assert.deepEqual(City.parse(parsed.output_parsed), JSON.parse(parsed.output_text));
  const tools = [zodResponsesFunction({ name: "get_weather", parameters: City })];
  const called = await client.responses.parse({ ...ASKED, max_output_tokens: 60, tools, tool_choice: "required" });
  const [call] = called.output.filter((item) => item.type === "function_call");
  City.parse(call.parsed_arguments);
  const result = { type: "function_call_output", call_id: call.call_id, output: "Sunny" };
  assert.ok((await client.responses.create({ ...ASKED, input: [result], previous_response_id: called.id })).output_text);
});

test("a response in the background is fetched later, or cancelled", async () => {
  let response = await client.responses.create({ ...ASKED, background: true });
  assert.equal(response.status, "queued");
  while (["queued", "in_progress"].includes(response.status)) response = await client.responses.retrieve(response.id);
  assert.equal(response.status, "incomplete");
  const endless = { ...ASKED, input: "Write a novel.", max_output_tokens: 900, min_p: 0.1 };
  const { id } = await client.responses.create({ ...endless, background: true });
  assert.equal((await client.responses.cancel(id)).status, "cancelled");
});

test("completions are continued, echoed and scored", async () => {
  const asked = { model: MODEL, prompt: ["The capital of France is", "One, two,"], max_tokens: 3, temperature: 0, logprobs: 1, echo: true };
  const { choices } = await client.completions.create(asked);
  assert.match(choices[0].text, /^The capital of France is Paris/);
  assert.equal(choices[1].logprobs.tokens.join(""), choices[1].text);
  const chunks = await all(await client.completions.create({ ...asked, stream: true }));
  for (const choice of choices) {
    const pieces = chunks.flatMap((chunk) => chunk.choices).filter((one) => one.index === choice.index);
    assert.equal(pieces.map((piece) => piece.text).join(""), choice.text);
  }
});

test("embeddings are floats of length one, whichever way they travel", async () => {
  const asked = { model: MODEL, input: ["the sea", "the shore"] };
  const vectors = (await client.embeddings.create(asked)).data.map((one) => one.embedding); // the client asks for base64 and decodes it
  const plain = (await client.embeddings.create({ ...asked, encoding_format: "float" })).data.map((one) => one.embedding);
  assert.equal(vectors[0].length, 576);
  assert.ok(Math.abs(Math.hypot(...vectors[0]) - 1) < 1e-5);
  for (const [index, vector] of vectors.entries()) assert.ok(vector.every((value, place) => Math.abs(value - plain[index][place]) < 1e-6));
  assert.equal((await client.embeddings.create({ ...asked, dimensions: 64 })).data[1].embedding.length, 64);
});

test("models are listed and found", async () => {
  const models = await all(client.models.list());
  assert.deepEqual(models.map((model) => model.id), [MODEL]);
  assert.equal((await client.models.retrieve(MODEL)).owned_by, "octavo");
});

test("without a folder for them, files are refused with the remedy", async () => {
  const file = await toFile(Buffer.from("{}"), "a.jsonl");
  await assert.rejects(client.files.create({ file, purpose: "batch" }), { status: 404, code: "batches_off" });
});
