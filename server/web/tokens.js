// An answer as its tokens, tinted by how probable each was; a card shows what else could have stood there.

import { byId, make } from "./dom.js";

const card = byId("token-card");

/** What is kept of a token's log probabilities: its text, its own, and the likeliest in its place. */
export function compact(entry) {
  return { text: entry.token, bytes: entry.bytes, logprob: entry.logprob, top: entry.top_logprobs.map((one) => [one.token, one.logprob]) };
}

/** Shows tokens in an element, and goes on with those that come. With the keyboard, arrows go from token to token. */
export class TokenView {
  constructor(element) {
    this.element = element;
    this.tokens = [];
    element.tabIndex = 0;
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", "The answer's tokens: arrow keys go through them");
    element.addEventListener("pointerover", (event) => this.show(event.target));
    element.addEventListener("pointerleave", hideCard);
    element.addEventListener("click", (event) => this.show(event.target));
    element.addEventListener("focus", () => this.show(this.element.firstElementChild));
    element.addEventListener("blur", hideCard);
    element.addEventListener("keydown", (event) => this.onKey(event));
  }

  update(tokens) {
    for (const token of tokens.slice(this.tokens.length)) this.element.append(this.span(token));
    this.tokens = tokens.slice();
  }

  span(token) {
    // Five steps, from certain to unlikely, as classes: the policy of the page allows no styles in attributes.
    const level = 4 - Math.min(4, Math.floor(Math.exp(token.logprob) * 5));
    return make("span", { class: `token p${level}` }, token.text);
  }

  show(span) {
    const place = [...this.element.children].indexOf(span);
    if (place < 0) return;
    this.element.querySelector(".current")?.classList.remove("current");
    span.classList.add("current");
    showCard(span, this.tokens[place]);
  }

  onKey(event) {
    const current = this.element.querySelector(".current");
    const next = { ArrowRight: current?.nextElementSibling, ArrowLeft: current?.previousElementSibling }[event.key];
    if (event.key === "Escape") hideCard();
    if (!next) return;
    event.preventDefault();
    this.show(next);
  }
}

export function hideCard() {
  card.hidden = true;
  document.querySelector(".token.current")?.classList.remove("current");
}

function showCard(span, token) {
  const listed = token.top.some(([text]) => text === token.text) ? token.top : [...token.top, [token.text, token.logprob]];
  const rows = listed.map(([text, logprob]) => {
    const meter = make("meter", { min: "0", max: "1", value: String(Math.exp(logprob)) });
    return make("tr", { class: text === token.text && "chosen" },
      make("td", { class: "what" }, visible(text)), make("td", {}, meter), make("td", { class: "number" }, percent(logprob)));
  });
  card.replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  card.hidden = false;
  const box = span.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - card.offsetWidth - 8));
  const below = box.bottom + 6 + card.offsetHeight < innerHeight;
  card.style.left = `${left}px`;
  card.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - card.offsetHeight - 6)}px`;
}

const visible = (text) => (text === "" ? "∅" : text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return share >= 9.95 ? `${share.toFixed(0)} %` : share >= 0.01 ? `${share.toFixed(2)} %` : "< 0.01 %";
}
