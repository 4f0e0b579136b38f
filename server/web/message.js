// One message on the page: its text, its actions, its numbers.

import { copy, icon, make } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { TokenView } from "./tokens.js";

const ICONS = {
  copy: "M7 7h9v9H7zM13 4H4v9",
  edit: "M4 16l1-4 8.5-8.5 3 3L8 15z",
  again: "M16 10a6 6 0 1 1-1.8-4.3M16 3v4h-4",
};

export class MessageView {
  /** `on`: what to call for edit(message, text) and regenerate(message). */
  constructor(message, on) {
    this.message = message;
    this.on = on;
    this.isTinted = false;
    const isUser = message.role === "user";
    this.body = make("div", { class: "body" });
    this.numbers = make("span", { class: "numbers" });
    this.actions = make("div", { class: "actions" }, this.action("copy", "Copy", () => copy(message.content, this.copyButton)));
    this.copyButton = this.actions.firstElementChild;
    if (isUser) this.actions.append(this.action("edit", "Edit and send again", () => this.edit()));
    else {
      this.actions.append(this.action("again", "Answer again", () => on.regenerate(message)));
      this.actions.prepend(this.numbers);
    }
    this.element = make("article", { class: `message ${message.role}`, "aria-label": isUser ? "You" : "The model" }, this.body, this.actions);
    if (isUser) this.body.append(make("p", { class: "plain" }, message.content));
    else this.update(false);
  }

  action(name, label, onclick) {
    return make("button", { type: "button", class: `quiet icon small ${name}`, "aria-label": label, title: label, onclick }, icon(ICONS[name]));
  }

  /** Draws what the answer has become. `isRunning`: more is to come. */
  update(isRunning) {
    const { message } = this;
    this.element.classList.toggle("running", isRunning);
    this.element.setAttribute("aria-busy", String(isRunning));
    if (this.isTinted && message.tokens?.length) this.drawTokens();
    else this.drawText(isRunning);
    this.drawNumbers();
  }

  /** Tinted tokens in the place of the rendered text, or the other way round. */
  tint(isTinted) {
    if (this.message.role === "user" || isTinted === this.isTinted) return;
    this.isTinted = isTinted;
    this.body.replaceChildren();
    this.tokenView = this.textView = this.thinking = this.failure = null;
    this.update(this.element.classList.contains("running"));
  }

  drawTokens() {
    if (!this.tokenView) {
      const element = make("div", { class: "tokens" });
      this.body.replaceChildren(element);
      this.tokenView = new TokenView(element);
      this.textView = this.thinking = this.failure = null;
    }
    this.tokenView.update(this.message.tokens);
    this.drawFailure();
  }

  drawText(isRunning) {
    const { message } = this;
    if (!this.textView) {
      const element = make("div", { class: "text" });
      this.body.replaceChildren(element);
      this.textView = new MarkdownView(element);
      this.tokenView = this.thinking = this.failure = null;
    }
    if (message.reasoning) this.drawThinking(isRunning && !message.content);
    this.textView.update(message.content);
    this.drawFailure();
  }

  drawThinking(isThinking) {
    if (!this.thinking) {
      this.thinkingText = make("div", { class: "text" });
      this.summary = make("summary", {});
      this.thinking = make("details", { class: "thinking" }, this.summary, this.thinkingText);
      this.thinkingView = new MarkdownView(this.thinkingText);
      this.body.prepend(this.thinking);
    }
    this.summary.textContent = isThinking ? "Thinking …" : "Thoughts";
    this.thinkingView.update(this.message.reasoning);
  }

  drawFailure() {
    if (!this.message.error) return;
    this.failure ??= make("p", { class: "failure" });
    this.failure.textContent = this.message.error;
    this.body.append(this.failure);
  }

  drawNumbers() {
    this.numbers.textContent = describe(this.message.stats);
  }

  edit() {
    const { message } = this;
    const text = make("textarea", { class: "editor", rows: String(Math.min(12, message.content.split("\n").length + 1)), "aria-label": "Edit the message" });
    text.value = message.content;
    const close = () => {
      this.element.classList.remove("editing");
      this.body.replaceChildren(make("p", { class: "plain" }, message.content));
    };
    const send = () => (text.value.trim() ? this.on.edit(message, text.value.trim()) : close());
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const buttons = make("div", { class: "row end" },
      make("button", { type: "button", class: "button", onclick: close }, "Cancel"),
      make("button", { type: "button", class: "button strong", onclick: send }, "Send"));
    this.element.classList.add("editing");
    this.body.replaceChildren(text, buttons);
    text.focus();
  }
}

const REASONS = { length: "cut at the limit", stopped: "stopped", content_filter: "filtered", tool_calls: "called a tool" };

/** An answer's numbers in one line: tokens, speed, time to first token, and how it ended where that is not as usual. */
export function describe(stats) {
  if (!stats) return "";
  const parts = [`${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`];
  if (stats.rate) parts.push(`${stats.rate.toFixed(stats.rate < 10 ? 1 : 0)} tokens/s`);
  if (stats.firstToken != null) parts.push(`first after ${duration(stats.firstToken)}`);
  if (REASONS[stats.reason]) parts.push(REASONS[stats.reason]);
  return parts.join(" · ");
}

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
