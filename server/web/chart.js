// A small chart of the last minutes: areas that lie on one another, or a line.

import { make, styled } from "./dom.js";

const LENGTH = 120; // samples that are kept

export class Chart {
  /** `series`: [name, CSS variable of its colour], the lowest first. `format` writes a value; `most` fixes the top of the scale. */
  constructor(title, series, format, most = null) {
    this.series = series;
    this.format = format;
    this.most = most;
    this.samples = [];
    this.value = make("span", { class: "chart-value" }, "–");
    this.canvas = make("canvas", { class: "chart", role: "img", "aria-label": title });
    const legend = series.length > 1 ? make("ul", { class: "legend" }, ...series.map(([name, colour]) => {
      const swatch = make("i", {});
      swatch.style.background = `var(${colour})`;
      return make("li", {}, swatch, name);
    })) : null;
    this.element = make("figure", { class: "panel" }, make("figcaption", {}, make("span", {}, title), this.value), this.canvas, legend);
    this.title = title;
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** One sample: a value for each series, null where it is not known. `shown` is the number beside the title. */
  add(values, shown) {
    this.samples.push(values);
    if (this.samples.length > LENGTH) this.samples.shift();
    this.value.textContent = shown === null ? "–" : this.format(shown);
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.value.textContent}`);
    this.draw();
  }

  draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const sums = this.samples.map((values) => values.reduce((sum, value) => sum + (value ?? 0), 0));
    const top = this.most ?? niceCeiling(sums.toSorted((one, other) => other - one)[1] ?? sums[0] ?? 0); // one spike flattens nothing
    const x = (place) => width - (this.samples.length - 1 - place) * (width / (LENGTH - 1));
    const y = (value) => height - 1 - Math.min(1, value / top) * (height - 16);
    this.drawScale(context, width, y, top);
    let floor = this.samples.map(() => 0);
    for (const [index, [, colour]] of this.series.entries()) {
      const ceiling = this.samples.map((values, place) => floor[place] + (values[index] ?? 0));
      fillBetween(context, x, y, floor, ceiling, styled(colour));
      floor = ceiling;
    }
  }

  drawScale(context, width, y, top) {
    context.strokeStyle = styled("--line");
    context.fillStyle = styled("--faint");
    context.font = `10px ${styled("--sans")}`;
    context.lineWidth = 1;
    for (const value of [0, top / 2, top]) {
      context.beginPath();
      context.moveTo(0, Math.round(y(value)) + 0.5);
      context.lineTo(width, Math.round(y(value)) + 0.5);
      context.stroke();
      if (value) context.fillText(this.format(value), 2, Math.round(y(value)) - 3);
    }
  }
}

function fillBetween(context, x, y, floor, ceiling, colour) {
  if (ceiling.length < 2) return;
  context.beginPath();
  ceiling.forEach((value, place) => context.lineTo(x(place), y(value)));
  for (let place = floor.length - 1; place >= 0; place--) context.lineTo(x(place), y(floor[place]));
  context.closePath();
  context.fillStyle = colour;
  context.globalAlpha = 0.3;
  context.fill();
  context.globalAlpha = 1;
  context.beginPath();
  ceiling.forEach((value, place) => context.lineTo(x(place), y(value)));
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
}

/** 1, 2 or 5 times a power of ten, at or above the value. */
function niceCeiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value);
}
