// Map: random items of the served index as points, near each other if their vectors are similar, coloured by a field.

import { $, option, setOptions } from "./elements.js";
import { loadFields } from "./facets.js";
import { drawLegend, drawSummary, groupPoints } from "./groups.js";
import { drawPlot, resizePlot, showGroups } from "./plot.js";
import { go } from "./route.js";
import { call, clearError, fresh, say, showError } from "./service.js";
import { plural, whole } from "./words.js";

const PREFERRED = ["category", "department", "product_class", "product_type", "brand", "color"];
const NONE = "-"; // In the link: no field.
let field = "";
let answer = null; // Last answer of GET /map.
let groups = [];
let hidden = new Set(); // Names of the groups that are not shown.

export async function showMap(params, changed) {
  const signal = fresh("map");
  clearError("map-error");
  if (!answer || changed) say("map-status", "Loading the map. The first time it takes a few seconds…");
  const fields = (await loadFields()).filter((one) => one.kinds?.includes("text")).map((one) => one.name);
  if (signal.aborted) return;
  const given = params.get("field");
  const chosen = given === NONE ? "" : given ?? PREFERRED.find((name) => fields.includes(name)) ?? "";
  setOptions($("map-field"), [option("", "nothing"), ...fields.map((name) => option(name))], chosen);
  try {
    const next = await call("GET", chosen ? `/map?${new URLSearchParams({ field: chosen })}` : "/map", { signal });
    const isSame = field === chosen && JSON.stringify(next) === JSON.stringify(answer);
    if (field !== chosen) hidden = new Set();
    [field, answer] = [chosen, next];
    if (!isSame) drawMap();
    sayShown();
  } catch (error) {
    if (error.name === "AbortError") return;
    say("map-status", "");
    showError("map-error", error, () => showMap(params, true));
  }
}

function drawMap() {
  groups = groupPoints(answer.points, field);
  $("map-body").hidden = !answer.points.length;
  drawPlot(groups);
  drawLegend(groups, hidden, toggle);
  drawSummary(groups, field);
  show();
}

function toggle(name) {
  if (!hidden.delete(name)) hidden.add(name);
  drawLegend(groups, hidden, toggle);
  show();
  sayShown();
}

// Points of shown groups whose title contains the typed text.
function isFound(point) {
  const typed = $("map-find").value.trim().toLowerCase();
  return !typed || String(point.title).toLowerCase().includes(typed);
}

const show = () => showGroups((group) => !hidden.has(group.name), isFound);

function sayShown() {
  if (!answer.points.length) return say("map-status", "The served index has no items.");
  const shown = groups.filter((group) => !hidden.has(group.name)).flatMap((group) => group.points);
  const found = shown.filter(isFound).length;
  const typed = $("map-find").value.trim();
  const all = `${plural(answer.points.length, "item")} of ${whole(answer.num_items)} in the index of ${answer.version}`;
  const isPart = shown.length < answer.points.length;
  const parts = [all, isPart && `${whole(shown.length)} shown`, typed && `${whole(found)} with “${typed}” in the title`];
  say("map-status", `${parts.filter(Boolean).join(", ")}.`);
}

export function startMap() {
  $("map-field").addEventListener("change", () => go("map", new URLSearchParams({ field: $("map-field").value || NONE })));
  $("map-find").addEventListener("input", () => { if (answer) { show(); sayShown(); } });
  $("map-form").addEventListener("submit", (event) => event.preventDefault());
  new ResizeObserver(() => resizePlot()).observe($("map-plot"));
}
