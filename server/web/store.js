// Conversations and settings, in the browser's localStorage. Nothing of them is kept on the server.

const CONVERSATIONS = "octavo.conversations";
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

/** Newest first. Each: { id, title, messages: [{ role, content, reasoning?, stats?, error? }] }. */
export let conversations = read(CONVERSATIONS, []);

export function newConversation() {
  const found = { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: "", messages: [] };
  conversations.unshift(found);
  return found;
}

/** Keeps what there is, the conversation that was touched last first. */
export function save(touched) {
  conversations = [touched, ...conversations.filter((one) => one !== touched)].slice(0, MOST);
  persist();
}

export function remove(conversation) {
  conversations = conversations.filter((one) => one !== conversation);
  persist();
}

function persist() {
  // Log probabilities are large, and for looking at once: they live as long as the tab.
  const slim = (message) => ({ ...message, tokens: undefined });
  const kept = conversations.filter((one) => one.messages.length).map((one) => ({ ...one, messages: one.messages.map(slim) }));
  while (!write(CONVERSATIONS, kept) && kept.length > 1) kept.pop(); // full: the oldest go
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
