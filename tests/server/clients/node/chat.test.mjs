import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { APIUserAbortError, BadRequestError, NotFoundError } from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { all, client, GREEDY, MODEL, options, SEA } from "./setup.mjs";

const whole = await client.chat.completions.create(GREEDY);
const text = whole.choices[0].message.content;

test("an answer has its text, its reason and its usage", () => {
  assert.equal(whole.object, "chat.completion");
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 12);
  assert.ok(text.length > 10);
  assert.ok(whole._request_id);
});

test("a stream says the same in chunks, and ends with the usage", async () => {
  const chunks = await all(await client.chat.completions.create({ ...GREEDY, stream: true, stream_options: { include_usage: true } }));
  assert.deepEqual(chunks[0].choices[0].delta, { role: "assistant", content: "" });
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), text);
  assert.equal(chunks.at(-2).choices[0].finish_reason, "length");
  assert.equal(chunks.at(-1).usage.completion_tokens, 12);
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
});

test("the streaming helper tells of each piece and ends with the whole", async () => {
  let pieces = "";
  const stream = client.chat.completions.stream(GREEDY).on("content", (delta) => (pieces += delta));
  assert.equal(await stream.finalContent(), text);
  assert.equal(pieces, text);
  assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, "length");
});

test("two readers of one stream see the same", async () => {
  const [left, right] = (await client.chat.completions.create({ ...GREEDY, stream: true })).tee();
  assert.deepEqual(await all(left), await all(right));
});

test("parse gives what the zod schema describes, streamed or not", async () => {
  const Guest = z.object({ age: z.number().int().min(0).max(99), seat: z.enum(["aisle", "window"]), name: z.string().max(4).nullable() });
  const asked = { ...GREEDY, max_tokens: 60, response_format: zodResponseFormat(Guest, "guest") };
  const parsed = (await client.chat.completions.parse(asked)).choices[0].message.parsed;
  Guest.parse(parsed);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, parsed);
});

const City = z.object({ city: z.string().max(10) });

test("a required call is parsed, and its arguments stream in pieces", async () => {
  const tools = [zodFunction({ name: "get_weather", parameters: City })];
  const asked = { ...GREEDY, max_tokens: 60, tools, tool_choice: "required", parallel_tool_calls: false };
  const call = (await client.chat.completions.parse(asked)).choices[0].message.tool_calls[0];
  City.parse(call.function.parsed_arguments);
  const stream = client.chat.completions.stream(asked);
  const seen = [];
  stream.on("tool_calls.function.arguments.delta", (event) => seen.push(event.arguments_delta));
  const streamed = (await stream.finalChatCompletion()).choices[0];
  assert.equal(streamed.finish_reason, "tool_calls");
  assert.equal(seen.join(""), streamed.message.tool_calls[0].function.arguments);
  assert.deepEqual(streamed.message.tool_calls[0].function.parsed_arguments, call.function.parsed_arguments);
});

test("runTools calls the function and sends back what it returned", async () => {
  const asked = [];
  const weather = async ({ city }) => (asked.push(city), "Sunny");
  const tool = { type: "function", function: { name: "get_weather", parse: JSON.parse, function: weather, parameters: z.toJSONSchema(City) } };
  for (const stream of [false, true]) {
    const choice = { type: "function", function: { name: "get_weather" } };
    const runner = client.chat.completions.runTools({ ...GREEDY, max_tokens: 60, tools: [tool], tool_choice: choice, stream });
    await runner.done();
    assert.deepEqual(runner.messages.slice(1).map((message) => message.role), ["assistant", "tool"]);
    assert.equal(await runner.finalFunctionToolCallResult(), "Sunny");
  }
  assert.equal(asked.length, 2);
  const turns = { ...GREEDY, max_tokens: 60, tools: [tool], tool_choice: "required" };
  const runner = client.chat.completions.runTools(turns, { maxChatCompletions: 2 });
  await runner.done();
  assert.ok(runner.messages.filter((message) => message.role === "tool").length >= 2, "results go back to the model, which calls again");
});

test("an error is of the client's own class, and says what was wrong", async () => {
  await assert.rejects(client.chat.completions.create({ ...GREEDY, temperature: -1 }), (error) => {
    assert.ok(error instanceof BadRequestError);
    assert.deepEqual([error.status, error.param, error.type], [400, "temperature", "invalid_request_error"]);
    return Boolean(error.requestID);
  });
  await assert.rejects(client.chat.completions.create({ ...GREEDY, model: "gpt-5" }), (error) => error instanceof NotFoundError && error.code === "model_not_found");
  const long = [{ role: "user", content: "word ".repeat(2000) }];
  await assert.rejects(client.chat.completions.create({ model: MODEL, messages: long }), { code: "context_length_exceeded" });
});

test("an error in the middle of a stream is thrown", async () => {
  const stream = await client.chat.completions.create({ ...GREEDY, max_tokens: 900, ignore_eos: true, timeout: 0.2, stream: true });
  await assert.rejects(all(stream), (error) => error.code === "timeout" || error.error?.code === "timeout");
});

test("an abort ends a stream and an answer that is waited for", async () => {
  const endless = { ...GREEDY, max_tokens: 900, ignore_eos: true };
  const stream = await client.chat.completions.create({ ...endless, stream: true });
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 100);
  await assert.rejects(client.chat.completions.create(endless, { signal: controller.signal }), APIUserAbortError);
  const helper = client.chat.completions.stream({ ...GREEDY, max_tokens: 900 });
  helper.once("content", () => helper.abort());
  await assert.rejects(helper.done(), APIUserAbortError);
});

test("a timeout of the client is its own error, and retries are its own", async () => {
  const endless = { ...GREEDY, max_tokens: 900, ignore_eos: true };
  await assert.rejects(client.chat.completions.create(endless, { timeout: 150 }), OpenAI.APIConnectionTimeoutError);
  const retrying = new OpenAI({ ...options, maxRetries: 2 });
  await assert.rejects(retrying.chat.completions.create({ ...endless, timeout: 0.1 }), { status: 408 });
});

test("extra parameters go at the top level, and the raw response is at hand", async () => {
  const { data, response } = await client.chat.completions.create({ ...GREEDY, top_k: 1, temperature: 1, return_token_ids: true }).withResponse();
  assert.equal(data.choices[0].message.content, text);
  assert.equal(data.choices[0].token_ids.length, 12);
  assert.match(response.headers.get("content-type"), /application\/json/);
  assert.ok(response.headers.get("x-request-id"));
});

test("log probabilities come with their bytes", async () => {
  const { content } = (await client.chat.completions.create({ ...GREEDY, logprobs: true, top_logprobs: 2 })).choices[0].logprobs;
  assert.equal(Buffer.from(content.flatMap((entry) => entry.bytes)).toString(), text);
  assert.ok(content.every((entry) => entry.top_logprobs.length === 2));
});
