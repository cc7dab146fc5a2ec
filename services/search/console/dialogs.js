// Dialogs: a question, and the API key.

import { $, el } from "./elements.js";

let asking = Promise.resolve();

// Resolves to the text (or true for a plain confirmation), or to null when cancelled.
export function ask({ title, text, ok, label, value = "", secret = false }) {
  asking = asking.then(() => new Promise((resolve) => {
    const dialog = $("ask-dialog");
    $("ask-title").textContent = title;
    $("ask-text").replaceChildren(...text.map((part) => el("p", {}, part)));
    $("ask-field").hidden = !label;
    $("ask-label").textContent = label ?? "";
    $("ask-input").type = secret ? "password" : "text";
    $("ask-input").value = value;
    $("ask-ok").textContent = ok;
    let result = null;
    $("ask-form").onsubmit = (event) => {
      event.preventDefault();
      result = label ? $("ask-input").value.trim() : true;
      dialog.close();
    };
    $("ask-cancel").onclick = () => dialog.close();
    dialog.onclose = () => resolve(result);
    dialog.showModal();
    (label ? $("ask-input") : $("ask-cancel")).focus();
  }));
  return asking;
}

let keyAsked = null;
const keyListeners = [];

// Runs a function after each new key.
export const onNewKey = (listener) => keyListeners.push(listener);

// Concurrent calls share one dialog. Resolves to whether a key was entered.
export function askKey(refused) {
  keyAsked ??= ask({
    title: refused ? "The key was rejected" : "API key",
    text: ["The service requires a key. It is sent with every request and kept until you close this tab."],
    ok: "Use key", label: "Key", secret: true,
  }).then((key) => {
    keyAsked = null;
    if (!key) return false;
    sessionStorage.setItem("souk-key", key);
    for (const listener of keyListeners) listener();
    return true;
  });
  return keyAsked;
}
