// Claude Code, asked once: it gets a call, runs the command, sends back what came out, and tells the answer.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { printed, run } from "./checks.mjs";

const variables = {
  ANTHROPIC_BASE_URL: process.env.CLIENT_BASE_URL.replace(/\/v1$/, ""),
  ANTHROPIC_API_KEY: "none",
  ANTHROPIC_MODEL: process.env.CLIENT_MODEL,
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
};

await run({
  "a command that it runs"() {
    const asked = ["-p", "Count the foxes.", "--output-format", "json", "--allowedTools", "Bash"];
    const told = JSON.parse(printed("claude", asked, variables).trim().split("\n").at(-1));
    assert.equal(told.is_error, false, told.result);
    assert.equal(told.result, "There are 7 foxes, and foxes.txt says so.");
    assert.equal(told.num_turns, 2);
    assert.equal(readFileSync("foxes.txt", "utf8"), "7 foxes\n");
    assert.ok(told.usage.output_tokens > 0);
  },
});
