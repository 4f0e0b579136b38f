// What the engine is doing: figures, charts, the pool of blocks, and every request. Asked for once a second while it is looked at.

import { getJson, key } from "./api.js";
import { Chart } from "./chart.js";
import { make } from "./dom.js";
import { askForKey } from "./key_dialog.js";
import { colourOf, PoolMap } from "./pool_map.js";

const INTERVAL = 1000; // ms
const MOST_ROWS = 100;
const PARTS = ["schedule", "model", "sample", "update"];
const PHASES = { starting: "starting", ready: "ready", sleeping: "asleep", draining: "draining", failed: "failed" };

export class StatusView {
  constructor(element) {
    this.timer = null;
    this.before = null; // the state of a second ago, for what is a rate
    this.notice = make("div", { class: "notice", role: "alert", hidden: true });
    this.tiles = make("dl", { class: "tiles" });
    this.pool = new PoolMap();
    const whole = (value) => (value < 10 && value % 1 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
    const percent = (value) => `${(100 * value).toFixed(value && value < 0.1 ? 1 : 0)} %`;
    this.charts = {
      tokens: new Chart("Tokens per second", [["answers", "--accent"], ["prompts", "--second"]], whole),
      step: new Chart("Time of a step", PARTS.map((name, place) => [name, `--part-${place}`]), (ms) => `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`),
      blocks: new Chart("KV blocks in use", [["in use", "--accent"]], percent, 1),
      hits: new Chart("Prompt tokens from the cache", [["hits", "--second"]], percent, 1),
    };
    this.rows = make("tbody");
    const columns = ["Request", "Phase", "Prompt", "Cached", "Generated", "Tokens/s", "Blocks"];
    this.table = make("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": "Requests" },
      make("table", {}, make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)))), this.rows));
    element.append(this.notice, this.tiles,
      make("div", { class: "charts" }, ...Object.values(this.charts).map((chart) => chart.element)),
      make("figure", { class: "panel" }, make("figcaption", {}, make("span", {}, "KV blocks"), legend()), this.pool.canvas, this.pool.told),
      make("section", { class: "panel" }, make("h2", {}, "Requests"), this.table));
  }

  /** Begins or ends asking. */
  run(isOn) {
    clearTimeout(this.timer);
    this.timer = null;
    this.isOn = isOn;
    if (isOn) this.poll();
  }

  redraw() {
    this.pool.draw();
    for (const chart of Object.values(this.charts)) chart.draw();
  }

  async poll() {
    if (!document.hidden) {
      try {
        this.show(await getJson("debug/state"));
        this.tell("");
      } catch (error) {
        this.before = null;
        this.explain(error);
      }
    }
    clearTimeout(this.timer);
    if (this.isOn) this.timer = setTimeout(() => this.poll(), INTERVAL);
  }

  explain(error) {
    if (error.status !== 401 && error.status !== 403) return this.tell(error.message);
    this.run(false); // until there is another key, there is no use in asking again
    this.tell("What the engine is doing is shown to the holder of an admin's key.");
    const button = make("button", { type: "button", class: "button" }, "Enter a key");
    button.addEventListener("click", async () => (await askForKey(key.get() ? "This key is no admin's." : "An admin's key.")) && this.run(true));
    this.notice.append(" ", button);
  }

  tell(words) {
    this.notice.textContent = words;
    this.notice.hidden = !words;
  }

  show(state) {
    const now = performance.now();
    const rates = this.rates(state, now);
    this.before = { state, now };
    const { stats } = state;
    const used = stats.blocks_total ? stats.blocks_referenced / stats.blocks_total : 0;
    this.figures([
      ["State", PHASES[state.phase] ?? state.phase],
      ["Running", `${stats.num_running}`, state.max_num_seqs ? `of ${state.max_num_seqs}` : ""],
      ["Waiting", `${stats.num_waiting}`, stats.num_swapped ? `${stats.num_swapped} swapped out` : ""],
      ["Generated", stats.generation_tokens_total.toLocaleString("en")],
      ["Preemptions", stats.preemptions_total.toLocaleString("en")],
      ["Engine restarts", `${state.engine_restarts}`],
    ]);
    this.charts.tokens.add([rates.generated, rates.prompt], rates.generated);
    this.charts.step.add(rates.parts, rates.steps ? rates.parts.reduce((sum, ms) => sum + ms, 0) : null);
    this.charts.blocks.add([used], used);
    const looked = stats.prompt_tokens_total;
    const hits = rates.prompt ? rates.hits / rates.prompt : looked ? stats.prefix_cache_hits_total / looked : 0;
    this.charts.hits.add([Math.min(1, hits)], looked ? stats.prefix_cache_hits_total / looked : null);
    this.pool.update(state);
    this.requests(state.sequences, rates.speeds);
  }

  /** What grew since the last look, per second; of steps, milliseconds of each part in the mean. */
  rates(state, now) {
    const nothing = { generated: 0, prompt: 0, hits: 0, steps: 0, parts: PARTS.map(() => 0), speeds: new Map() };
    const before = this.before?.state;
    // A new engine counts from nothing.
    if (!before || before.engine_restarts !== state.engine_restarts) return nothing;
    const seconds = (now - this.before.now) / 1000;
    const grown = (name) => Math.max(0, (state.stats[name] ?? 0) - (before.stats[name] ?? 0));
    const steps = grown("steps_total");
    const earlier = new Map(before.sequences.map((one) => [one.request_id, one.num_generated_tokens]));
    const speeds = new Map();
    for (const one of state.sequences)
      if (earlier.has(one.request_id)) speeds.set(one.request_id, (one.num_generated_tokens - earlier.get(one.request_id)) / seconds);
    return {
      generated: grown("generation_tokens_total") / seconds,
      prompt: grown("prompt_tokens_total") / seconds,
      hits: grown("prefix_cache_hits_total") / seconds,
      steps,
      parts: PARTS.map((name) => (steps ? (1000 * grown(`${name}_seconds_total`)) / steps : 0)),
      speeds,
    };
  }

  figures(given) {
    this.tiles.replaceChildren(...given.map(([name, value, more]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value, more ? make("small", {}, ` ${more}`) : null))));
  }

  requests(sequences, speeds) {
    const rows = sequences.slice(0, MOST_ROWS).map((one) => {
      const chip = make("i", { class: "chip" });
      chip.style.background = one.num_blocks ? colourOf(one.request_id) : "transparent";
      const speed = speeds.get(one.request_id);
      const number = (text) => make("td", { class: "number" }, text);
      return make("tr", {},
        make("th", { scope: "row", title: one.request_id }, chip, make("span", { class: "request-id" }, one.request_id)),
        make("td", {}, make("span", { class: `phase ${one.phase}` }, one.phase)),
        number(one.num_prompt_tokens.toLocaleString("en")),
        number(one.num_cached_tokens.toLocaleString("en")),
        make("td", { class: "number" }, make("meter", { min: "0", max: String(one.max_tokens), value: String(one.num_generated_tokens) }),
          ` ${one.num_generated_tokens.toLocaleString("en")} of ${one.max_tokens.toLocaleString("en")}`),
        number(speed === undefined ? "–" : speed.toFixed(speed < 10 ? 1 : 0)),
        number(String(one.num_blocks)));
    });
    if (!rows.length) rows.push(make("tr", {}, make("td", { colspan: "7", class: "empty" }, "Nobody asks for anything.")));
    const left = sequences.length - MOST_ROWS;
    if (left > 0) rows.push(make("tr", {}, make("td", { colspan: "7", class: "empty" }, `and ${left} more`)));
    this.rows.replaceChildren(...rows);
  }
}

function legend() {
  const entries = [["free", "--cell-free"], ["cached", "--cell-cached"], ["shared", "--cell-shared"], ["of one request", "--hue-0"]];
  return make("ul", { class: "legend" }, ...entries.map(([name, colour]) => {
    const swatch = make("i", {});
    swatch.style.background = `var(${colour})`;
    return make("li", {}, swatch, name);
  }));
}
