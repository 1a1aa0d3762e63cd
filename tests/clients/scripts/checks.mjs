// What the scripts in node share: checks that are made one after the other, and programs of the client's package.

import { execFileSync } from "node:child_process";
import { appendFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

// A PNG file in base64: a chequered field of 16 by 8 pixels.
export const image = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAIAQMAAADKuO3UAAAABlBMVEX/eAAoeChsDPVRAAAAEklEQVR42mPkZ2BigCLGDwg2AAx1AQ5N1sOhAAAAAElFTkSuQmCC";

const programs = join(dirname(fileURLToPath(import.meta.url)), "node_modules", ".bin");

// Make the checks, functions by name, and write what came of each to the file that the environment names.
export async function run(checks) {
  for (const [check, make] of Object.entries(checks)) {
    console.log(`== ${check}`);
    let outcome = { check, outcome: "passed", why: "" };
    try {
      await make();
    } catch (error) {
      console.log(error);
      outcome = { check, outcome: "failed", why: `${error}`.slice(0, 400) };
    }
    console.log(`   ${outcome.outcome}`);
    appendFileSync(process.env.CLIENT_RESULTS, JSON.stringify(outcome) + "\n");
  }
}

// What a program prints that the package has. `variables`: of its environment.
export function printed(program, parameters, variables = {}) {
  return execFileSync(join(programs, program), parameters, {
    encoding: "utf8", env: { ...process.env, ...variables }, stdio: ["ignore", "pipe", "inherit"], timeout: 300_000,
  });
}
