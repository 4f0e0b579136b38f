// The pool of KV blocks, one cell a block: free, cached, shared, or in the colour of the sequence that holds it.

import { make, styled } from "./dom.js";

const FREE = -1;
const CACHED = -2;
const SHARED = -3;
const LARGEST = 16; // pixels of a cell
const HIGHEST = 260; // pixels of the map
const COLOURS = 8; // --hue-0 to --hue-7 in the style sheet

const given = new Map(); // request id: number of its colour
let next = 0;

/** The colour of a sequence: the same for as long as it lives. Colours are given in turn, so that neighbours in time differ. */
export function colourOf(requestId) {
  if (!given.has(requestId)) {
    if (given.size > 1000) given.delete(given.keys().next().value);
    given.set(requestId, next++ % COLOURS);
  }
  return styled(`--hue-${given.get(requestId)}`);
}

export class PoolMap {
  constructor() {
    this.canvas = make("canvas", { class: "pool", role: "img" });
    this.told = make("p", { class: "fine told" }, "\u00a0");
    this.state = null;
    this.canvas.addEventListener("pointermove", (event) => this.tell(event));
    this.canvas.addEventListener("pointerleave", () => (this.told.textContent = "\u00a0"));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  update(state) {
    this.state = state;
    this.draw();
  }

  draw() {
    const { canvas, state } = this;
    const { width } = canvas.getBoundingClientRect();
    if (!state || !width) return;
    const { blocks, stats } = state;
    const scale = devicePixelRatio || 1;
    this.columns = columnsFor(blocks.length, width);
    this.cell = width / this.columns;
    const height = Math.max(1, Math.ceil(blocks.length / this.columns)) * this.cell;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const fixed = { [FREE]: styled("--cell-free"), [CACHED]: styled("--cell-cached"), [SHARED]: styled("--cell-shared") };
    const held = state.sequences.map((one) => colourOf(one.request_id));
    const gap = this.cell > 5 ? 1 : 0.5;
    blocks.forEach((holder, place) => {
      context.fillStyle = fixed[holder] ?? held[holder] ?? fixed[SHARED];
      context.fillRect((place % this.columns) * this.cell, Math.floor(place / this.columns) * this.cell, this.cell - gap, this.cell - gap);
    });
    canvas.setAttribute("aria-label",
      `KV blocks: ${stats.blocks_referenced} in use, ${stats.blocks_cached} cached, ${stats.blocks_free} free, of ${stats.blocks_total}`);
  }

  /** What the pointer is on, in words. */
  tell(event) {
    if (!this.state?.blocks.length) return;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const place = Math.floor((event.clientY - box.top) / this.cell) * this.columns + column;
    const holder = this.state.blocks[place];
    if (holder === undefined) return;
    const block = place * (this.state.blocks_per_cell ?? 1);
    const what = { [FREE]: "free", [CACHED]: "free, its content kept for whoever begins alike", [SHARED]: "held by several sequences" };
    this.told.textContent = `Block ${block}: ${what[holder] ?? `held by ${this.state.sequences[holder]?.request_id}`}`;
  }
}

/** As few columns as keep the map within its height. */
function columnsFor(count, width) {
  let columns = Math.max(1, Math.ceil(width / LARGEST));
  while (Math.ceil(count / columns) * (width / columns) > HIGHEST) columns++;
  return columns;
}
