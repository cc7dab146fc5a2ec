// Models: the versions, their reports, and which one is served.

import { ask } from "./dialogs.js";
import { $, button, el, head, redraw, row, table } from "./elements.js";
import { view } from "./route.js";
import { call, clearError, fresh, passes, say, sayOnce, showError } from "./service.js";
import { setVersions, versions } from "./versions.js";
import { isNumber, isRange, moment, plain, rangeText, signed, whole } from "./words.js";

const PREFERRED = [/^hit_?rate@/i, /^good_?rate@/i, /^ndcg@10$/i, /^ndcg@/i, /^recall@/i, /^mrr/i, /./];
let models = null; // Last answer of GET /models.
let modelsTimer = 0;

export async function showModels() {
  clearTimeout(modelsTimer);
  const signal = fresh("models");
  if (!models) say("models-status", "Loading versions…");
  try {
    const before = models;
    models = await call("GET", "/models", { signal });
    setVersions(models);
    clearError("models-error");
    if (JSON.stringify(models) !== JSON.stringify(before)) drawModels(before);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!models) say("models-status", "");
    if (!passes(error)) return showError("models-error", error, showModels);
    showError("models-error", error);
  }
  const wait = models?.building ? 1500 : 15000;
  modelsTimer = setTimeout(() => { if (view === "models" && !document.hidden) showModels(); }, wait);
}

function drawModels(before) {
  const { served, building } = models;
  $("rollback-button").disabled = !served;
  $("build").hidden = !building;
  if (building) {
    say("build-text", `Building the index of ${building.version}: ${whole(building.done)} of ${whole(building.of)} items`);
    $("build-progress").max = building.of || 1;
    $("build-progress").value = building.done;
  }
  const ended = before?.building && !building ? before.building.version : null;
  let words = served ? `${served.version} is served (generation ${plain(served.generation)}, since ${moment(served.promoted_at)}).` : "No version is served.";
  if (ended) words = `The build of ${ended} has finished. ${words}`;
  if (building) words = `${words} ${building.version} is being built.`;
  if (!versions.length) words = "No versions yet.";
  sayOnce("models-status", words);
  redraw($("models"), versions.length ? [versionTable(), metricNote()] : [], $("models-status"));
}

const overall = (version) => version?.report?.metrics?.overall ?? {};

function inOrder(names) {
  const place = (name) => PREFERRED.findIndex((pattern) => pattern.test(name));
  return names.sort((a, b) => place(a) - place(b));
}

const mainMetrics = () => inOrder([...new Set(versions.flatMap((one) => Object.keys(overall(one))))]).slice(0, 4);

function delta(gap, digits, range, baseRange) {
  const apart = isRange(range) && isRange(baseRange) && (range[0] > baseRange[1] || range[1] < baseRange[0]);
  const way = gap > 0 ? "up" : "down";
  return el("span", { class: `delta ${apart ? way : ""}` }, signed(gap, digits), apart && (gap > 0 ? " ▲" : " ▼"));
}

// Same number of decimals for all values of a metric.
const digitsOf = (name) => (versions.every((one) => Math.abs(overall(one)[name] ?? 0) <= 1) ? 3 : 1);

// Baseline of a version's report: the served version's, if both are of the same split.
function baseOf(version) {
  const base = versions.find((one) => one.version === models.served?.version);
  return base !== version && base?.report && base.report.split === version.report?.split ? base.report.metrics : null;
}

function metricCell(name, value, range, base, baseRange, props) {
  const digits = digitsOf(name);
  return el("td", { class: "number", ...props }, el("div", {},
    isNumber(value) ? value.toFixed(digits) : "–", " ",
    isRange(range) && el("span", { class: "range" }, rangeText(range, digits)), " ",
    isNumber(value) && isNumber(base) && delta(value - base, digits, range, baseRange)));
}

function overallCell(version, name, props) {
  const base = baseOf(version);
  const ranges = version.report?.metrics?.intervals;
  return metricCell(name, overall(version)[name], ranges?.[name], base?.overall?.[name], base?.intervals?.[name], props);
}

// Explicit roles: the phone layout removes the table display.
function versionTable() {
  const names = mainMetrics();
  const heads = ["Version", "State", "Created", ...names, "Actions"];
  return el("table", { class: "versions", role: "table", "aria-label": "Versions" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads.map((name) =>
      el("th", { scope: "col", role: "columnheader", class: names.includes(name) ? "number" : "" }, name)))),
    el("tbody", { role: "rowgroup" }, versions.map((one) => versionRows(one, names, heads.length))));
}

function versionRows(version, names, width) {
  const served = models.served?.version === version.version;
  const state = served ? "served" : plain(version.state).replace("_", " ");
  return [
    el("tr", { role: "row", class: served ? "served" : "", "data-version": version.version },
      el("th", { scope: "row", role: "rowheader" }, version.version),
      el("td", { role: "cell", "data-name": "State" }, el("span", { class: served ? "tag" : "state" }, state)),
      el("td", { role: "cell", "data-name": "Created" }, moment(version.created_at)),
      names.map((name) => overallCell(version, name, { role: "cell", "data-name": name })),
      el("td", { role: "cell", "data-name": "Actions" }, served ? "–"
        : button("Promote", () => promote(version), { key: `promote ${version.version}`, disabled: Boolean(models.building), "aria-label": `Promote ${version.version}` }))),
    el("tr", { role: "row", class: "more" }, el("td", { role: "cell", colspan: String(width) },
      el("details", { key: `details ${version.version}` }, el("summary", {}, `Details of ${version.version}`), versionDetails(version)))),
  ];
}

function versionDetails(version) {
  const rows = [["number", version.number], ["parent", version.parent], ["path", version.path], ["fingerprint", version.fingerprint],
    ["loaded", version.loaded ? "yes" : "no"],
    ["generations", (version.generations ?? []).map((one) => `${one.generation} ${one.state} (${moment(one.created_at)})`).join("; ") || "none"],
    ...Object.entries(version.metrics ?? {}).map(([name, value]) => [name, plain(value)])];
  return [
    el("dl", { class: "fields" }, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, plain(value))])),
    version.report?.metrics ? reportTable(version) : el("p", { class: "note" }, "No report: this version has not been evaluated."),
  ];
}

// A wide table scrolls in its own box, which is focusable for keyboard scrolling.
function reportTable(version) {
  const { split, created_at: created, metrics } = version.report;
  const base = baseOf(version);
  const slices = Object.entries(metrics.slices ?? {});
  const names = inOrder([...new Set([metrics.overall, ...slices.map(([, slice]) => slice)].flatMap((one) => Object.keys(one ?? {})))]);
  const sliceRow = ([slice, values]) =>
    row(slice, names.map((name) => metricCell(name, values?.[name], null, base?.slices?.[slice]?.[name])));
  const rows = [row("overall", names.map((name) => overallCell(version, name))), ...slices.map(sliceRow)];
  return [el("h3", {}, `Report on ${plain(split)}, ${moment(created)}`),
    el("div", { class: "scroll", role: "region", "aria-label": `Report of ${version.version}`, tabindex: "0", key: `report ${version.version}` },
      table([head("Slice"), ...names.map((name) => head(name, "number"))], rows))];
}

const metricNote = () => el("p", { class: "note" },
  "Small numbers: confidence interval, then difference from the served version. ▲ and ▼: the intervals do not overlap.");

async function promote(version) {
  const current = models.served?.version;
  const text = [`Searches without a version will use ${version.version}${current ? ` instead of ${current}` : ""}.`,
    "The service first checks that the version may be served, and builds its index if needed. Shoppers see no change until then.",
    "You can roll back afterwards."];
  if (!version.report) text.push("This version has no report, so the service will probably reject it.");
  if (await ask({ title: `Promote ${version.version}?`, text, ok: `Promote ${version.version}` })) {
    await changeServed(`/models/${encodeURIComponent(version.version)}/promote`);
  }
}

async function rollBack() {
  const current = models?.served?.version;
  if (!current) return;
  const text = [`Searches without a version will use the version that was served before ${current}.`,
    `${current} is marked as rolled back and cannot be promoted again.`];
  if (await ask({ title: `Roll back from ${current}?`, text, ok: "Roll back" })) await changeServed("/models/rollback");
}

async function changeServed(path) {
  clearError("models-error");
  try {
    await call("POST", path, { body: {} });
    await showModels();
  } catch (error) {
    showError("models-error", error);
  }
}

export function startModels() {
  $("rollback-button").addEventListener("click", rollBack);
}
