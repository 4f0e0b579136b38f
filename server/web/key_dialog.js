// The dialog that takes an API key.

import { key } from "./api.js";
import { byId } from "./dom.js";

const dialog = byId("key-dialog");
let answered = () => {};

byId("key-cancel").addEventListener("click", () => dialog.close("cancel"));
byId("key-form").addEventListener("submit", () => {
  key.set(byId("key").value.trim(), byId("key-remember").checked);
});
dialog.addEventListener("close", () => answered(dialog.returnValue !== "cancel"));
dialog.addEventListener("cancel", () => (dialog.returnValue = "cancel"));

/** Asks for a key, saying why. True once there is one, or an empty one to forget it; false where it was not given. */
export function askForKey(reason) {
  byId("key-reason").textContent = reason;
  byId("key").value = key.get();
  byId("key-remember").checked = key.isRemembered();
  dialog.returnValue = "";
  dialog.showModal();
  byId("key").select();
  return new Promise((resolve) => (answered = resolve));
}
