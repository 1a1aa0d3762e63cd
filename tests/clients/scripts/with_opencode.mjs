// opencode: it runs a command, and shortens a conversation that has become too long.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { printed, run } from "./checks.mjs";

const model = process.env.CLIENT_MODEL;
const limit = { context: 131072, output: 8192 };
writeFileSync("opencode.json", JSON.stringify({
  provider: {
    quire: {
      npm: "@ai-sdk/openai-compatible",
      name: "Quire",
      options: { baseURL: process.env.CLIENT_BASE_URL, apiKey: "none" },
      models: { [model]: { name: "Quire", reasoning: true, limit } },
    },
  },
  permission: { bash: "allow" },
}));
const asked = (question) => printed("opencode", ["run", "-m", `quire/${model}`, question]);

await run({
  "a command that it runs"() {
    assert.match(asked("Count the foxes."), /There are 7 foxes, and foxes.txt says so./);
    assert.equal(readFileSync("foxes.txt", "utf8"), "7 foxes\n");
  },
  "a conversation that it shortens"() {
    // It goes on and answers, and ends with 1 all the same, because there was an error.
    assert.throws(() => asked("Read the tale."), ({ stdout }) => /It is a tale of snow./.test(stdout));
  },
});
