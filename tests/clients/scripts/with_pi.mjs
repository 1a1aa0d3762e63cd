// The coding agent Pi, over each of its three APIs: it runs a command, and begins to shorten a conversation that has
// become too long.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { printed, run } from "./checks.mjs";

const url = process.env.CLIENT_BASE_URL;
const urls = {
  "openai-completions": url,
  "openai-responses": url,
  "anthropic-messages": url.replace(/\/v1$/, ""),
};
const home = join(process.env.HOME, ".pi", "agent");
mkdirSync(home, { recursive: true });
const models = [{ id: process.env.CLIENT_MODEL, reasoning: true }];
const providers = Object.entries(urls).map(([api, baseUrl]) => [api, { api, baseUrl, apiKey: "none", models }]);
writeFileSync(join(home, "models.json"), JSON.stringify({ providers: Object.fromEntries(providers) }));

const checks = {};
for (const api of Object.keys(urls)) {
  const chosen = ["--provider", api, "--model", process.env.CLIENT_MODEL];
  const asked = (question, ...more) => printed("pi", ["-p", ...chosen, ...more, question]);
  checks[`a command that it runs, over ${api}`] = () => {
    assert.match(asked("Count the foxes."), /There are 7 foxes, and foxes.txt says so./);
    assert.equal(readFileSync("foxes.txt", "utf8"), "7 foxes\n");
    rmSync("foxes.txt");
  };
  checks[`a conversation that it is to shorten, over ${api}`] = () => {
    // When asked once it does not wait for the shortening to end.
    assert.match(asked("Read the tale.", "--mode", "json"), /"compaction_start","reason":"overflow"/);
  };
}
await run(checks);
