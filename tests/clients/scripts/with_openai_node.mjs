// The openai package for node: answers, streams, parsed answers, calls, images, embeddings, errors.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { image, run } from "./checks.mjs";

const model = process.env.CLIENT_MODEL;
const client = new OpenAI({ baseURL: process.env.CLIENT_BASE_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const Animal = z.object({ name: z.string().max(12), kind: z.enum(["fox", "owl"]), age: z.number().int().min(0).max(99) });
const tools = [
  zodFunction({ name: "get_weather", parameters: z.object({ city: z.enum(["Oslo", "Rome"]) }), function: () => "It rains." }),
];

await run({
  async "models"() {
    const names = [];
    for await (const each of client.models.list()) names.push(each.id);
    assert.deepEqual(names, [model]);
  },
  async "chat"() {
    const answer = await client.chat.completions.create({ model, messages, max_completion_tokens: 8 });
    assert.ok(answer.choices[0].message.content);
  },
  async "stream with usage"() {
    const stream = await client.chat.completions.create({
      model, messages, max_tokens: 8, stream: true, stream_options: { include_usage: true },
    });
    let usage;
    for await (const chunk of stream) usage = chunk.usage ?? usage;
    assert.equal(usage.completion_tokens, 8);
  },
  async "streaming helper"() {
    const stream = client.chat.completions.stream({ model, messages, max_tokens: 8 });
    let said = "";
    stream.on("content", (delta) => { said += delta; });
    assert.equal(await stream.finalContent(), said);
  },
  async "parsed answer"() {
    const format = zodResponseFormat(Animal, "animal");
    const answer = await client.chat.completions.parse({ model, messages, response_format: format, seed: 1, max_tokens: 300 });
    assert.ok(["fox", "owl"].includes(answer.choices[0].message.parsed.kind));
  },
  async "parsed call"() {
    const answer = await client.chat.completions.parse({ model, messages, tools, tool_choice: "required", seed: 2 });
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    const call = answer.choices[0].message.tool_calls[0];
    assert.ok(["Oslo", "Rome"].includes(call.function.parsed_arguments.city));
  },
  async "calls that are run by the client"() {
    const choice = { type: "function", function: { name: "get_weather" } };
    const runner = client.chat.completions.runTools({ model, messages, tools, tool_choice: choice, seed: 3, max_tokens: 100 });
    assert.equal(await runner.finalFunctionToolCallResult(), "It rains.");
  },
  async "image"() {
    const content = [
      { type: "image_url", image_url: { url: `data:image/png;base64,${image}` } }, { type: "text", text: "What is it?" },
    ];
    const answer = await client.chat.completions.create({ model, messages: [{ role: "user", content }], max_tokens: 8 });
    assert.ok(answer.choices[0].message.content);
  },
  async "completions"() {
    const stream = await client.completions.create({ model, prompt: "The fox", max_tokens: 4, stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
    assert.ok(text);
  },
  async "embeddings"() {
    const found = await client.embeddings.create({ model, input: ["A fox.", "An owl."] });
    assert.equal(found.data.length, 2);
    assert.ok(Math.abs(Math.hypot(...found.data[0].embedding) - 1) < 1e-3);
  },
  async "errors"() {
    const ask = { model: "nobody", messages };
    await assert.rejects(client.chat.completions.create(ask), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ ...ask, model, n: 0 }), OpenAI.BadRequestError);
  },
});
