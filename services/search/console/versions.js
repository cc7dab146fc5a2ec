// Versions that the service knows, for the views that let the reader choose one.

import { call } from "./service.js";

export let versions = [];
export let served = null; // Name of the served version.
const listeners = [];

// Runs a function after each change of the versions.
export const onVersions = (listener) => listeners.push(listener);

export function setVersions(answer) {
  versions = answer.versions;
  served = answer.served?.version ?? null;
  for (const listener of listeners) listener();
}

// Without permission the list stays short.
export async function loadVersions() {
  try {
    setVersions(await call("GET", "/models", { quiet: true }));
  } catch {
    setVersions({ versions: [] });
  }
}
