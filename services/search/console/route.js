// Route: the hash names the view and what it shows.

import { $ } from "./elements.js";

let views = {}; // Function that shows each view, from its parameters and whether they have changed.
const drawn = {}; // Current parameters of each view.
export let view = null;
export let routed = null; // Current hash.

export function setViews(all) {
  views = all;
}

export const viewNames = () => Object.keys(views);

export function readHash() {
  const [name, ...rest] = location.hash.slice(1).split("?");
  return { name: Object.hasOwn(views, name) ? name : "search", params: new URLSearchParams(rest.join("?")) };
}

export function linkTo(name, params) {
  const text = new URLSearchParams(params).toString();
  return text ? `#${name}?${text}` : `#${name}`;
}

export function go(name, params) {
  const hash = linkTo(name, params);
  if (hash === location.hash) return route(true);
  location.hash = hash;
  // The hash event would come too late for a second key press.
  route();
}

function title(name, params) {
  const tab = $(`tab-${name}`).textContent;
  const query = name === "search" || name === "compare" ? params.get("q") : null;
  const round = name === "training" && params.get("round") ? `Round ${params.get("round")}` : null;
  return [query || round, tab, "Souk"].filter(Boolean).join(" – ");
}

export function route(again = false) {
  const { name, params } = readHash();
  routed = location.hash;
  if (name !== view) {
    view = name;
    for (const one of viewNames()) {
      const chosen = one === name;
      $(`view-${one}`).hidden = !chosen;
      $(`tab-${one}`).setAttribute("aria-selected", String(chosen));
      $(`tab-${one}`).tabIndex = chosen ? 0 : -1;
    }
  }
  const text = params.toString();
  const changed = again || drawn[name] !== text;
  drawn[name] = text;
  document.title = title(name, params);
  views[name](params, changed);
}

export const openTab = (name) => name !== view && go(name, new URLSearchParams(drawn[name] ?? ""));

export function moveTab(event) {
  const names = viewNames();
  const at = names.indexOf(view);
  const last = names.length - 1;
  const to = { ArrowRight: at + 1, ArrowLeft: at + last, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const name = names[to % names.length];
  openTab(name);
  $(`tab-${name}`).focus();
}
