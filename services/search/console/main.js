// Souk's web console: the views, the shortcuts, and the start.

import { compareKey, showCompare, startCompare } from "./compare.js";
import { askKey, onNewKey } from "./dialogs.js";
import { $, focusBox } from "./elements.js";
import { forgetFields } from "./facets.js";
import { showMap, startMap } from "./map.js";
import { showModels, startModels } from "./models.js";
import { startPlot } from "./plot.js";
import { moveTab, openTab, route, routed, setViews, view, viewNames } from "./route.js";
import { showSearch, startSearch } from "./search.js";
import { showTraining, startTraining } from "./training.js";
import { loadVersions } from "./versions.js";

// In the order of the tabs.
const VIEWS = { search: showSearch, compare: showCompare, models: showModels, training: showTraining, map: showMap };
const POLLED = ["models", "training"];

const keysOn = () => localStorage.getItem("souk-keys") !== "off";
const isTyping = (node) => node.matches?.("textarea, select, [contenteditable], input:not([type=checkbox], [type=radio])");

function onKey(event) {
  if (!keysOn() || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || $("ask-dialog").open) return;
  if (event.key === "/") {
    event.preventDefault();
    if (view !== "compare" && view !== "search") openTab("search");
    return focusBox(`${view}-query`);
  }
  if (view === "compare") compareKey(event);
}

function startTabs() {
  for (const name of viewNames()) $(`tab-${name}`).addEventListener("click", () => openTab(name));
  $("tabs").addEventListener("keydown", moveTab);
  $("key-button").addEventListener("click", async () => { if (await askKey(false)) route(true); });
  addEventListener("hashchange", () => { if (location.hash !== routed) route(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && POLLED.includes(view)) route(); });
}

function startKeys() {
  $("keys-on").checked = keysOn();
  $("keys-on").addEventListener("change", (event) => localStorage.setItem("souk-keys", event.target.checked ? "on" : "off"));
  document.addEventListener("keydown", onKey);
}

function start() {
  setViews(VIEWS);
  startTabs();
  startKeys();
  for (const startView of [startSearch, startCompare, startModels, startTraining, startMap, startPlot]) startView();
  onNewKey(() => { forgetFields(); loadVersions(); });
  route();
  loadVersions();
}

start();
