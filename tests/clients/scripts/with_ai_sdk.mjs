// Vercel's AI SDK with @ai-sdk/openai-compatible: answers, streams, structures, tools, images, embeddings, errors.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { image, run } from "./checks.mjs";

const quire = createOpenAICompatible({
  name: "quire", baseURL: process.env.CLIENT_BASE_URL, apiKey: "none", includeUsage: true,
  supportsStructuredOutputs: true,
});
const name = process.env.CLIENT_MODEL, model = quire(name);
const prompt = "Tell me a story about a fox.";
const Animal = z.object({ name: z.string().max(12), kind: z.enum(["fox", "owl"]) });
const weather = tool({
  description: "The weather.", inputSchema: z.object({ city: z.enum(["Oslo", "Rome"]) }), execute: async () => "It rains.",
});

await run({
  async "answer"() {
    const { text, usage, finishReason } = await generateText({ model, prompt, maxOutputTokens: 8, seed: 1, maxRetries: 0 });
    assert.ok(text);
    assert.equal(usage.outputTokens, 8);
    assert.equal(finishReason, "length");
  },
  async "stream with usage"() {
    const result = streamText({ model, prompt, maxOutputTokens: 8, maxRetries: 0 });
    let said = "";
    for await (const piece of result.textStream) said += piece;
    assert.ok(said);
    assert.equal((await result.usage).outputTokens, 8);
  },
  async "image"() {
    const content = [{ type: "text", text: prompt }, { type: "image", image: Buffer.from(image, "base64") }];
    const { text } = await generateText({ model, messages: [{ role: "user", content }], maxOutputTokens: 8, maxRetries: 0 });
    assert.ok(text);
  },
  async "structure"() {
    const { output } = await generateText({
      model, prompt, output: Output.object({ schema: Animal }), maxOutputTokens: 300, seed: 1, maxRetries: 0,
    });
    assert.ok(["fox", "owl"].includes(output.kind));
  },
  async "call that is run"() {
    const { toolResults } = await generateText({
      model, prompt, tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(1), seed: 2, maxRetries: 0,
    });
    assert.equal(toolResults[0].output, "It rains.");
  },
  async "streamed call"() {
    const result = streamText({
      model, prompt, tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(1), seed: 2, maxRetries: 0,
    });
    const calls = await result.toolCalls;
    assert.ok(["Oslo", "Rome"].includes(calls[0].input.city));
  },
  async "embeddings"() {
    const { embeddings } = await embedMany({ model: quire.embeddingModel(name), values: ["A fox.", "An owl."] });
    assert.equal(embeddings.length, 2);
    assert.ok(Math.abs(Math.hypot(...embeddings[0]) - 1) < 1e-3);
  },
  async "errors"() {
    const ask = (model) => generateText({ model, prompt, maxRetries: 0 });
    await assert.rejects(ask(quire("nobody")), (error) => APICallError.isInstance(error) && error.statusCode === 404);
  },
});
