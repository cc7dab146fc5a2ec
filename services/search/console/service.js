// Calls to the service, and its errors in words.

import { askKey } from "./dialogs.js";
import { $, button, el } from "./elements.js";

const trouble = (status, message) => Object.assign(new Error(message), { status });

export function readJson(text) {
  try { return JSON.parse(text); } catch { return null; }
}

// A quiet call never prompts for a key: the user did not start it.
export async function call(method, path, { body, signal, quiet = false } = {}) {
  for (;;) {
    const key = sessionStorage.getItem("souk-key");
    const headers = {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (key) headers.Authorization = `Bearer ${key}`;
    let response, answer;
    try {
      response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
      answer = readJson(await response.text());
    } catch (error) {
      throw error.name === "AbortError" ? error : trouble(0, "Cannot reach the service.");
    }
    if (response.ok && answer !== null) return answer;
    // Another call may have set a key meanwhile.
    const newer = () => key !== sessionStorage.getItem("souk-key");
    if (response.status === 401 && !quiet && (newer() || (await askKey(key !== null)))) continue;
    const message = answer?.error?.message;
    throw trouble(response.status, typeof message === "string" ? message : "Cannot read the service's answer.");
  }
}

// One call per slot: a new one aborts the previous one, so that a late answer cannot overwrite a newer one.
const slots = new Map();
export function fresh(slot) {
  slots.get(slot)?.abort();
  const controller = new AbortController();
  slots.set(slot, controller);
  return controller.signal;
}

const TROUBLE = {
  0: "No connection", 400: "Bad request", 401: "A key is required", 403: "This key does not allow that",
  404: "Not found", 409: "Not allowed now", 422: "Invalid request", 429: "Too many requests: try again in a moment",
  503: "The service is not ready", 504: "The service took too long",
};

export function showError(id, error, again) {
  if (error.name === "AbortError") return;
  const title = TROUBLE[error.status] ?? "Something went wrong";
  const needsKey = error.status === 401 || error.status === 403;
  $(id).replaceChildren(el("div", { class: "error" },
    el("strong", {}, title), el("p", {}, error.message),
    el("div", { class: "actions" },
      again && button("Try again", again),
      needsKey && button("Use another key", async () => { if (await askKey(false)) again?.(); }))));
}

// Whether polling continues after an error; with a rejected key it would prompt again and again.
export const passes = (error) => error.status !== 401 && error.status !== 403;

export const say = (id, words) => { $(id).textContent = words; };
// Leaves unchanged text alone, so that screen readers do not repeat it.
export const sayOnce = (id, words) => { if ($(id).textContent !== words) say(id, words); };
export const clearError = (id) => $(id).replaceChildren();
