// The pool of one worker as a map, one cell a block.

import {colour, prepare} from "./canvas.js";
import {owners} from "./picture.js";

const FLASH_MS = 1200;
const LARGEST = 30, SMALLEST = 3;  // sides of a cell, in CSS pixels
const AREA = 290;  // height that a map should have at most
const NAMES = ["free", "cached", "used", "shared", "shared-more", "shared-most", "copied", "evicted", "brought", "ink"];

// How many cells a row has, and how large a cell is.
export function layout(blocks, width) {
  let side = LARGEST;
  while (side > SMALLEST && Math.ceil(blocks / Math.floor(width / side)) * side > AREA) side -= 1;
  const columns = Math.max(1, Math.floor(width / side));
  return {side, columns, height: Math.ceil(blocks / columns) * side};
}

// The name of the colour of a block's state.
export function kindOf(state) {
  if (!state) return "free";
  const tables = state >> 1;
  if (tables < 2) return tables ? "used" : "cached";
  return tables < 3 ? "shared" : tables < 6 ? "shared-more" : "shared-most";
}

// A colour for each request, the same whenever it is drawn.
export function hue(text) {
  let sum = 0;
  for (const letter of text) sum = (sum * 31 + letter.charCodeAt(0)) >>> 0;
  return (sum * 137) % 360;
}

// Draws the worker's blocks. `chosen`: blocks with a frame; `mode`: what the colours mean.
// True if something still flashes, so that it has to be drawn again.
export function drawPool(canvas, worker, {chosen, cursor, mode, now}) {
  const blocks = worker.limits.blocks ?? 0;
  const {side, columns, height} = layout(blocks, canvas.clientWidth);
  const context = prepare(canvas, height), inner = side > 4 ? side - 1 : side;
  const colours = Object.fromEntries(NAMES.map(name => [name, colour(name)]));
  const at = block => [(block % columns) * side, Math.floor(block / columns) * side];
  const fill = (block, style) => {
    context.fillStyle = style;
    context.fillRect(...at(block), inner, inner);
  };
  const byRequest = mode === "request" ? owners(worker) : null;
  for (let block = 0; block < blocks; block += 1) {
    const owner = byRequest?.get(block);
    fill(block, owner ? `hsl(${hue(owner.request_id)} 62% 52%)` : colours[kindOf(worker.states.get(block))]);
  }
  for (const [block, {kind, at: since}] of worker.flashes) {
    const age = (now - since) / FLASH_MS;
    if (age >= 1) { worker.flashes.delete(block); continue; }
    context.globalAlpha = 1 - age;
    fill(block, colours[kind]);
    context.globalAlpha = 1;
  }
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.5;
  for (const block of chosen) context.strokeRect(at(block)[0] - .25, at(block)[1] - .25, inner + .5, inner + .5);
  if (cursor !== null) {
    context.setLineDash([2, 2]);
    context.strokeRect(at(cursor)[0] - 1, at(cursor)[1] - 1, inner + 2, inner + 2);
    context.setLineDash([]);
  }
  return worker.flashes.size > 0;
}

// The block at a place of the canvas; null if there is none.
export function blockAt(canvas, worker, x, y) {
  const blocks = worker.limits.blocks ?? 0, {side, columns} = layout(blocks, canvas.clientWidth);
  const column = Math.floor(x / side), block = Math.floor(y / side) * columns + column;
  return column < columns && block >= 0 && block < blocks ? block : null;
}

// Where an arrow key leads from a block.
export function moved(canvas, worker, block, key) {
  const blocks = worker.limits.blocks ?? 0, {columns} = layout(blocks, canvas.clientWidth);
  const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns}[key] ?? 0;
  const to = block + by;
  return to >= 0 && to < blocks ? to : block;
}
