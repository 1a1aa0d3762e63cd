// The last steps as a timeline: tokens above the line, the time that a step took below it.

import {colour, prepare} from "./canvas.js";

const BAR = 7, HEIGHT = 150, BASE = 100;  // width of a bar, height of the drawing, its line

const shown = (steps, width) => steps.slice(-Math.max(1, Math.floor(width / BAR)));

export function drawSteps(canvas, steps, cursor) {
  const context = prepare(canvas, HEIGHT), width = canvas.clientWidth;
  const bars = shown(steps, width), left = width - bars.length * BAR;
  const most = Math.max(16, ...bars.map(tokens), ...bars.map(step => step.budget ?? 0));
  const longest = Math.max(1, ...bars.map(step => step.duration_us ?? 0));
  const high = count => Math.sqrt(count / most) * (BASE - 6);  // a step may have one token or thousands
  const box = (x, from, to, style) => {
    context.fillStyle = colour(style);
    context.fillRect(x, Math.min(from, to), BAR - 1, Math.abs(to - from));
  };
  bars.forEach((step, place) => {
    const x = left + place * BAR, decoded = step.decodes ?? 0, held = step.drafts_held ?? 0;
    let top = BASE, below = 0;
    for (const [count, style] of [[decoded, "used"], [held, "copied"], [step.prompt_tokens ?? 0, "shared"]]) {
      if (!count) continue;
      const next = BASE - high(below + count);
      box(x, top, next, style);
      [top, below] = [next, below + count];
    }
    box(x, BASE + 3, BASE + 3 + ((step.duration_us ?? 0) / longest) * (HEIGHT - BASE - 5), "line");
    if (step.budget) {
      context.fillStyle = colour("soft");
      context.fillRect(x, BASE - high(step.budget), BAR - 1, 1);
    }
    if (place === cursor) {
      context.strokeStyle = colour("ink");
      context.strokeRect(x - .5, .5, BAR, HEIGHT - 1);
    }
  });
  context.fillStyle = colour("soft");
  context.fillRect(0, BASE + 1, width, 1);
  return bars;
}

export const barAt = (canvas, steps, x) => {
  const bars = shown(steps, canvas.clientWidth);
  const place = Math.floor((x - (canvas.clientWidth - bars.length * BAR)) / BAR);
  return place >= 0 && place < bars.length ? place : null;
};

const tokens = step => (step.decodes ?? 0) + (step.drafts_held ?? 0) + (step.prompt_tokens ?? 0);
const many = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

// A step in words.
export function told(step) {
  if (!step) return "";
  const parts = [many(step.decodes ?? 0, "decode")];
  if (step.chunks) parts.push(`${many(step.chunks, "chunk")} of prompts with ${many(step.prompt_tokens, "token")}`);
  if (step.drafts) parts.push(`${many(step.drafts, "draft")} of which ${step.drafts_held ?? 0} held`);
  if (step.admitted) parts.push(`${step.admitted} admitted`);
  if (step.forked) parts.push(`${step.forked} forked`);
  if (step.copied_to) parts.push(`${many(step.copied_to.length, "block")} copied`);
  if (step.swapped_out) parts.push(`${step.swapped_out.length} to the host`);
  if (step.swapped_in) parts.push(`${step.swapped_in.length} from the host`);
  return `Step ${step.number}: ${parts.join(", ")}; budget ${step.budget ?? 0}; ${((step.duration_us ?? 0) / 1000).toFixed(1)} ms`;
}
