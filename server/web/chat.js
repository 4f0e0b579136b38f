// The conversation that is open: sending, stopping, answering again, editing.

import { fill } from "./answer.js";
import { byId, make } from "./dom.js";
import { askForKey } from "./key_dialog.js";
import { describe, MessageView } from "./message.js";
import * as store from "./store.js";
import { hideCard } from "./tokens.js";

const IDEAS = ["Why is the sky blue?", "Write a haiku about paper", "Explain what a KV cache is", "Give me three names for a grey cat"];

const messages = byId("messages");
const scroller = byId("scroller");
const text = byId("composer-text");
const send = byId("send");
const live = byId("live");
const announcer = byId("announcer");

export class Chat {
  constructor(onChange) {
    this.onChange = onChange; // the list of conversations may look different now
    this.isTinted = false;
    this.views = [];
    this.running = null; // AbortController of the answer that is coming
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.sendTyped();
    });
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.sendTyped();
    });
    text.addEventListener("input", fitText);
    scroller.addEventListener("scroll", hideCard, { passive: true });
  }

  /** Shows a conversation; null: a new one, which begins with its first message. */
  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.draw();
    live.textContent = "";
    text.focus({ preventScroll: true });
    this.onChange();
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  tint(isTinted) {
    this.isTinted = isTinted;
    hideCard();
    for (const view of this.views) view.tint(isTinted);
  }

  draw() {
    this.views = [];
    messages.replaceChildren();
    for (const message of this.conversation?.messages ?? []) this.show(message);
    if (!this.views.length) messages.append(this.welcome());
    this.markLast();
    scroller.scrollTop = scroller.scrollHeight;
  }

  show(message) {
    messages.querySelector(".welcome")?.remove();
    const view = new MessageView(message, { edit: (...given) => this.edit(...given), regenerate: (one) => this.regenerate(one) });
    view.tint(this.isTinted);
    this.views.push(view);
    messages.append(view.element);
    this.markLast();
    return view;
  }

  /** Only the last answer can be given again. */
  markLast() {
    this.views.forEach((view, place) => view.element.classList.toggle("last", place === this.views.length - 1));
  }

  welcome() {
    const idea = (words) => make("button", { type: "button", class: "idea", onclick: () => this.say(words) }, words);
    return make("div", { class: "welcome" },
      make("h2", {}, "A blank page."),
      make("p", {}, "Conversations stay in this browser."),
      make("div", { class: "ideas" }, ...IDEAS.map(idea)));
  }

  sendTyped() {
    const words = text.value.trim();
    if (!words || this.running) return;
    text.value = "";
    fitText();
    this.say(words);
  }

  say(words) {
    if (this.running) return;
    this.conversation ??= store.newConversation();
    this.conversation.title ||= words.replace(/\s+/g, " ").slice(0, 80);
    const message = { role: "user", content: words };
    this.conversation.messages.push(message);
    this.show(message);
    this.answer();
  }

  edit(message, words) {
    this.stop();
    this.cutAt(message);
    this.say(words);
  }

  regenerate(message) {
    this.stop();
    this.cutAt(message);
    this.answer();
  }

  /** Forgets a message and what came after it. */
  cutAt(message) {
    const place = this.conversation.messages.indexOf(message);
    this.conversation.messages.length = place;
    for (const view of this.views.splice(place)) view.element.remove();
  }

  async answer() {
    const { conversation } = this;
    const before = conversation.messages.slice();
    const answer = { role: "assistant", content: "" };
    conversation.messages.push(answer);
    const view = this.show(answer);
    const controller = new AbortController();
    this.running = controller;
    this.setRunning(true);
    announcer.textContent = "The model is answering";
    store.save(conversation);
    this.onChange();
    follow(true);

    // As many drawings as the screen shows, however many tokens come.
    let isDue = false;
    const draw = () => {
      isDue = false;
      if (this.running !== controller) return;
      const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
      view.update(true);
      live.textContent = describe(answer.stats);
      follow(isAtEnd);
    };
    view.update(true);
    try {
      await fill(answer, before, conversation.id, controller.signal, () => {
        if (isDue) return;
        isDue = true;
        requestAnimationFrame(draw);
      });
    } catch (error) {
      answer.error = `This page made a mistake: ${error.message}`;
      throw error;
    } finally {
      const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
      view.update(false);
      this.ended(controller, conversation, answer);
      follow(isAtEnd);
    }
    if (answer.needsKey) this.retryWithKey(answer, conversation);
  }

  ended(controller, conversation, answer) {
    // Another conversation may be open by now: then the page's state is its.
    if (this.running === controller || this.running === null) {
      this.running = null;
      this.setRunning(false);
      live.textContent = "";
      announcer.textContent = answer.error ?? `The answer: ${answer.content}`;
    }
    if (store.conversations.includes(conversation)) store.save(conversation);
    this.onChange();
  }

  async retryWithKey(answer, conversation) {
    delete answer.needsKey;
    if ((await askForKey(answer.error)) && this.conversation === conversation && conversation.messages.at(-1) === answer) this.regenerate(answer);
  }

  setRunning(isRunning) {
    send.classList.toggle("stops", isRunning);
    send.setAttribute("aria-label", isRunning ? "Stop" : "Send");
  }
}

function follow(isAtEnd) {
  if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
}

/** As high as what is typed, up to what the style sheet allows. */
function fitText() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
}
