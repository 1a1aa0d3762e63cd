// OpenAI's Codex, asked once: it gets a call, runs the command, sends back what came out, and tells the answer.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { printed, run } from "./checks.mjs";

const home = join(process.env.HOME, ".codex");
mkdirSync(home, { recursive: true });
writeFileSync(join(home, "config.toml"), `
model = "${process.env.CLIENT_MODEL}"
model_provider = "quire"
[model_providers.quire]
name = "Quire"
base_url = "${process.env.CLIENT_BASE_URL}"
wire_api = "responses"
`);
const asked = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"];

await run({
  "a command that it runs"() {
    const events = printed("codex", [...asked, "Count the foxes."]).trim().split("\n")
      .filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
    const items = events.filter((event) => event.type === "item.completed").map((event) => event.item);
    const ran = items.find((item) => item.type === "command_execution");
    assert.equal(ran.exit_code, 0);
    assert.equal(ran.aggregated_output.trim(), "7 foxes");
    assert.equal(items.at(-1).text, "There are 7 foxes, and foxes.txt says so.");
    assert.equal(readFileSync("foxes.txt", "utf8"), "7 foxes\n");
    assert.ok(events.at(-1).usage.output_tokens > 0);
  },
});
