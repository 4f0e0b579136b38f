// The page: its views, its list of conversations, its keys and colours.

import { getJson, key } from "./api.js";
import { Chat } from "./chat.js";
import { byId, icon, make } from "./dom.js";
import { askForKey } from "./key_dialog.js";
import { openSettings } from "./settings_drawer.js";
import { StatusView } from "./status.js";
import * as store from "./store.js";

const chat = new Chat(drawConversations);
const status = new StatusView(byId("status"));

function drawConversations() {
  const shown = store.conversations.filter((one) => one.messages.length);
  byId("conversations").replaceChildren(...shown.map(conversationItem));
}

function conversationItem(conversation) {
  const isOpen = chat.conversation === conversation;
  const open = make("button", { type: "button", class: "conversation", "aria-current": isOpen && "true", onclick: () => {
    chat.open(conversation);
    showSidebar(false);
    showView("chat");
  } }, conversation.title || "Untitled");
  const forget = make("button", { type: "button", class: "quiet icon small", "aria-label": `Delete: ${conversation.title}`, title: "Delete" }, icon("M5 5l10 10M15 5L5 15"));
  forget.addEventListener("click", () => {
    if (!forget.classList.contains("sure")) {
      forget.classList.add("sure");
      forget.setAttribute("aria-label", "Press again to delete");
      forget.title = "Press again to delete";
      setTimeout(drawConversations, 3000);
      return;
    }
    store.remove(conversation);
    if (chat.conversation === conversation) chat.open(null);
    else drawConversations();
  });
  return make("li", {}, open, forget);
}

function newChat() {
  showView("chat");
  showSidebar(false);
  chat.open(null);
}

// Views

const tabs = { chat: byId("tab-chat"), status: byId("tab-status") };

function showView(name) {
  for (const [one, tab] of Object.entries(tabs)) {
    tab.setAttribute("aria-selected", String(one === name));
    tab.tabIndex = one === name ? 0 : -1;
    byId(one).hidden = one !== name;
  }
  document.body.dataset.view = name;
  if (location.hash !== `#${name}`) history.replaceState(null, "", name === "chat" ? location.pathname : `#${name}`);
  status.run(name === "status");
}

for (const [name, tab] of Object.entries(tabs)) {
  tab.addEventListener("click", () => showView(name));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = name === "chat" ? "status" : "chat";
    showView(other);
    tabs[other].focus();
  });
}

// The list of conversations on a narrow screen

function showSidebar(isOpen) {
  document.body.classList.toggle("sidebar-open", isOpen);
  byId("menu").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) byId("new-chat").focus();
}
byId("menu").addEventListener("click", () => showSidebar(!document.body.classList.contains("sidebar-open")));
byId("scrim").addEventListener("click", () => showSidebar(false));
byId("new-chat").addEventListener("click", newChat);

// Colours

const THEMES = { auto: "automatic", light: "light", dark: "dark" };

const chosenTheme = () => localStorage.getItem("octavo.theme") ?? "auto";

function setTheme(name) {
  if (name === "auto") localStorage.removeItem("octavo.theme");
  else localStorage.setItem("octavo.theme", name);
  dispatchEvent(new Event("octavo-theme"));
  byId("theme").textContent = `Colours: ${THEMES[name]}`;
  status.redraw();
}
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(chosenTheme()) + 1) % names.length]);
});
setTheme(chosenTheme());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => status.redraw());

// Keys, buttons

byId("tint").addEventListener("click", () => {
  const isTinted = byId("tint").getAttribute("aria-pressed") !== "true";
  byId("tint").setAttribute("aria-pressed", String(isTinted));
  chat.tint(isTinted);
});
byId("settings-button").addEventListener("click", openSettings);
byId("key-button").addEventListener("click", async () => {
  if (await askForKey(key.get() ? "The key that is sent with every request." : "Only needed where the server asks for one.")) greet();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    newChat();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("sidebar-open")) showSidebar(false);
    else chat.stop();
  }
});

/** The model's name; asks for a key where one is needed. */
async function greet() {
  try {
    const model = (await getJson("v1/models")).data[0];
    byId("model").textContent = model.id;
    byId("composer-text").placeholder = `Message ${model.id}`;
    notice("");
  } catch (error) {
    if (error.status === 401) {
      if (await askForKey(key.get() ? "The server does not take this key." : "This server asks for a key.")) return greet();
    }
    notice(error.message);
    if (error.status === 0 || error.status === 503) setTimeout(greet, 2000); // it may be starting
  }
}

function notice(words) {
  byId("notice").textContent = words;
  byId("notice").hidden = !words;
}

store.onOtherTabs((one) => one === chat.conversation, drawConversations);
chat.open(null);
showView(location.hash === "#status" ? "status" : "chat");
greet();
