// Conversations and settings, in the browser's localStorage. Nothing of them is kept on the server.

const PREFIX = "octavo.conversation."; // and the id
const SETTINGS = "octavo.settings";
const MOST = 200; // conversations

/** Sampling settings: null leaves a parameter to the server's default. */
export const DEFAULTS = Object.freeze({
  system: "",
  temperature: 0.7,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  seed: null,
  presence_penalty: null,
  repetition_penalty: null,
  logprobs: true,
});

export const settings = { ...DEFAULTS, ...read(SETTINGS, {}) };

export function saveSettings() {
  write(SETTINGS, settings);
}

/** The latest first. Each: { id, title, touched, messages: [{ role, content, reasoning?, stats?, error?, tokens? }] }. */
export let conversations = stored();

export function newConversation() {
  const made = { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: "", touched: 0, messages: [] };
  conversations.unshift(made);
  return made;
}

/** Keeps a conversation, which is now the latest. Each has an entry of its own: other tabs of the browser have theirs. */
export function save(conversation) {
  conversation.touched = Date.now();
  conversations = [conversation, ...conversations.filter((one) => one !== conversation)];
  conversations.slice(MOST).forEach(remove);
  // Log probabilities are large, and for looking at once: they live as long as the tab.
  const kept = { ...conversation, messages: conversation.messages.map((message) => ({ ...message, tokens: undefined })) };
  while (!write(PREFIX + conversation.id, kept) && conversations.length > 1) remove(conversations.at(-1)); // full: the oldest go
}

export function remove(conversation) {
  conversations = conversations.filter((one) => one !== conversation);
  localStorage.removeItem(PREFIX + conversation.id);
}

/** Calls back when another tab has kept or removed a conversation; the one that `isOpen` here stays as it is. */
export function onOtherTabs(isOpen, callback) {
  addEventListener("storage", (event) => {
    if (event.key !== null && !event.key.startsWith(PREFIX)) return;
    const mine = conversations.filter((one) => isOpen(one));
    conversations = [...mine, ...stored().filter((one) => !mine.some((other) => other.id === one.id))];
    callback();
  });
}

function stored() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const found = names.map((name) => read(name, null)).filter((one) => one?.messages?.length);
  return found.sort((one, other) => other.touched - one.touched);
}

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
