// The pool of KV blocks, one cell a block: free, cached, shared, or in the colour of the sequence that holds it.

import { make, styled } from "./dom.js";

const FREE = -1;
const CACHED = -2;
const SHARED = -3;
const COLOURS = 8; // --hue-0 to --hue-7 in the style sheet

/** The colour of a sequence: the same for as long as it lives, whatever its place in the list. */
export function colourOf(requestId) {
  let hash = 7;
  for (const letter of requestId) hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
  return styled(`--hue-${hash % COLOURS}`);
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
    const { width, height } = canvas.getBoundingClientRect();
    if (!state || !width) return;
    const { blocks, stats } = state;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    this.columns = columnsFor(blocks.length, width, height);
    this.cell = width / this.columns;
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

/** As few columns as let all cells fit: as large as they can be, and no larger than 14 pixels. */
function columnsFor(count, width, height) {
  let columns = Math.max(1, Math.ceil(width / 14));
  while (Math.ceil(count / columns) * (width / columns) > height) columns++;
  return columns;
}
