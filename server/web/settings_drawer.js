// The drawer with the system prompt and the sampling settings.

import { byId, make } from "./dom.js";
import { DEFAULTS, saveSettings, settings } from "./store.js";

// name, label, what it does, lowest, highest, step
const NUMBERS = [
  ["temperature", "Temperature", "0 is greedy: the same answer each time", 0, 2, 0.05],
  ["top_p", "Top-p", "Only the likeliest tokens whose probabilities add up to this", 0.05, 1, 0.05],
  ["top_k", "Top-k", "Only so many of the likeliest tokens", 1, 1000, 1],
  ["min_p", "Min-p", "Only tokens at least this probable, beside the likeliest", 0, 1, 0.01],
  ["max_tokens", "Longest answer", "In tokens", 1, 1000000, 1],
  ["seed", "Seed", "The same seed gives the same answer", 0, 4294967295, 1],
  ["presence_penalty", "Presence penalty", "Against tokens that have been said", -2, 2, 0.1],
  ["repetition_penalty", "Repetition penalty", "Above 1: against repeating anything", 0.5, 2, 0.05],
];
const dialog = byId("settings");

export function openSettings() {
  dialog.replaceChildren(form());
  dialog.showModal();
}

dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // beside the drawer
});

function form() {
  const system = make("textarea", { id: "set-system", rows: "4", placeholder: "None" });
  system.value = settings.system;
  system.addEventListener("input", () => change("system", system.value));
  const logprobs = make("input", { type: "checkbox", id: "set-logprobs", checked: settings.logprobs });
  logprobs.addEventListener("change", () => change("logprobs", logprobs.checked));
  const reset = make("button", { type: "button", class: "button", onclick: () => {
    Object.assign(settings, DEFAULTS);
    saveSettings();
    dialog.replaceChildren(form());
  } }, "Defaults");
  return make("form", { method: "dialog" },
    make("header", {}, make("h2", { id: "settings-title" }, "Settings")),
    make("div", { class: "setting" }, make("label", { for: "set-system" }, "System prompt"), system),
    make("div", { class: "numbers-grid" }, ...NUMBERS.map((given) => number(...given))),
    make("label", { class: "check" }, logprobs, "Ask for token probabilities"),
    make("p", { class: "fine" }, "An empty field leaves the choice to the server. Settings hold for what is sent from now on."),
    make("div", { class: "row end" }, reset, make("button", { class: "button strong" }, "Done")));
}

function number(name, label, explanation, min, max, step) {
  const id = `set-${name}`;
  const input = make("input", { id, type: "number", inputmode: "decimal", min, max, step, placeholder: "server's", "aria-describedby": `${id}-what` });
  if (settings[name] !== null) input.value = settings[name];
  input.addEventListener("input", () => {
    if (input.validity.badInput || input.validity.rangeUnderflow || input.validity.rangeOverflow) return;
    change(name, input.value === "" ? null : Number(input.value));
  });
  return make("div", { class: "setting" }, make("label", { for: id }, label), input, make("span", { id: `${id}-what`, class: "fine" }, explanation));
}

function change(name, value) {
  settings[name] = value;
  saveSettings();
}
