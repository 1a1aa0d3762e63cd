// GitHub's Copilot CLI with a provider of its user's, over each of its three APIs: it runs a command, and shortens a
// conversation that has become too long.

import assert from "node:assert/strict";
import { readFileSync, rmSync } from "node:fs";
import { printed, run } from "./checks.mjs";

const apis = {
  "chat completions": { COPILOT_PROVIDER_TYPE: "openai", COPILOT_PROVIDER_WIRE_API: "completions" },
  responses: { COPILOT_PROVIDER_TYPE: "openai", COPILOT_PROVIDER_WIRE_API: "responses" },
  messages: { COPILOT_PROVIDER_TYPE: "anthropic" },
};

function asked(question, api) {
  const anthropic = api.COPILOT_PROVIDER_TYPE === "anthropic";
  return printed("copilot", ["-p", question, "--allow-all-tools", "--silent"], {
    COPILOT_PROVIDER_BASE_URL: process.env.CLIENT_BASE_URL.replace(anthropic ? /\/v1$/ : /$/, ""),
    COPILOT_PROVIDER_API_KEY: "none",
    COPILOT_MODEL: process.env.CLIENT_MODEL,
    COPILOT_OFFLINE: "true",
    ...api,
  });
}

const checks = {};
for (const [name, api] of Object.entries(apis)) {
  checks[`a command that it runs, over ${name}`] = () => {
    assert.match(asked("Count the foxes.", api), /There are 7 foxes, and foxes.txt says so./);
    assert.equal(readFileSync("foxes.txt", "utf8"), "7 foxes\n");
    rmSync("foxes.txt");
  };
  checks[`a conversation that it shortens, over ${name}`] = () => {
    assert.match(asked("Read the tale.", api), /It is a tale of snow./);
  };
}
await run(checks);
