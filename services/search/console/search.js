// Search: form, link and hits.

import { $, clamp, el, option, setOptions } from "./elements.js";
import { drawChips, drawFacets, drawFieldEditor, drawFilterEditor, editedFilter, facetFields, loadFields } from "./facets.js";
import { conditions, readFilter } from "./filters.js";
import { hitCard, largestPart } from "./hits.js";
import { go, route } from "./route.js";
import { call, clearError, fresh, say, showError } from "./service.js";
import { onVersions, versions } from "./versions.js";
import { isNumber, plain, plural, whole } from "./words.js";

const COUNTS = ["dense", "lexical", "constant"];
const LAST_OFFSET = 10000;
let search = { q: "", channel: "served", dense: 1, lexical: 1, constant: "", model: "", k: 10, page: 1, explain: false, filter: [] };
const blank = { ...search };

function searchFrom(params) {
  const count = (name, least, most) => {
    const value = Number(params.get(name) ?? NaN);
    return Number.isFinite(value) ? clamp(value, least, most) : blank[name];
  };
  const k = Math.round(count("k", 1, 1000));
  return {
    q: params.get("q") ?? "",
    channel: ["dense", "hybrid"].includes(params.get("channel")) ? params.get("channel") : blank.channel,
    dense: count("dense", 0, 1e6), lexical: count("lexical", 0, 1e6), constant: count("constant", 0, 1e6),
    model: params.get("model") ?? "", k,
    page: Math.round(count("page", 1, Math.floor(LAST_OFFSET / k) + 1)),
    explain: params.get("explain") === "1", filter: readFilter(params.get("filter")),
  };
}

// Default values are left out of the link.
function searchParams(state) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name === "filter" || value === blank[name] || (COUNTS.includes(name) && state.channel !== "hybrid")) continue;
    params.set(name, value === true ? "1" : value);
  }
  if (state.filter.length) params.set("filter", JSON.stringify(conditions(state.filter)));
  return params;
}

function searchForm() {
  const state = { ...search, page: 1, q: $("search-query").value.trim(), model: $("search-version").value };
  state.channel = document.querySelector("[name=channel]:checked").value;
  for (const name of COUNTS) {
    const value = $(`search-${name}`).valueAsNumber;
    state[name] = Number.isFinite(value) && value >= 0 ? value : blank[name];
  }
  state.k = Number($("search-k").value);
  state.explain = $("search-explain").checked;
  return state;
}

const change = (part) => go("search", searchParams({ ...searchForm(), ...part }));
const setFilter = (filter) => change({ filter });

function drawSearchForm() {
  $("search-query").value = search.q;
  document.querySelector(`[name=channel][value=${search.channel}]`).checked = true;
  $("search-weights").hidden = search.channel !== "hybrid";
  for (const name of COUNTS) $(`search-${name}`).value = search[name];
  setOptions($("search-k"), ["10", "20", "50", "100"].map((k) => option(k)), String(search.k));
  $("search-explain").checked = search.explain;
  drawVersionChoice();
}

function drawVersionChoice() {
  const loaded = versions.filter((one) => one.loaded).map((one) => option(one.version));
  setOptions($("search-version"), [option("", "served"), ...loaded], search.model);
  $("search-version-label").hidden = !loaded.length && !search.model;
}

function drawMeta(answer) {
  const pairs = [["took", isNumber(answer.took_ms) ? `${answer.took_ms.toFixed(1)} ms` : "–"], ["model", answer.model], ["index", answer.index], ["catalogue", whole(answer.catalogue)]];
  if (isNumber(answer.reranked)) pairs.push(["reranked", answer.reranked ? `first ${whole(answer.reranked)}` : "no: not in time"]);
  if (answer.experiment) pairs.push(["experiment", `${plain(answer.experiment.name)}, arm ${plain(answer.experiment.arm)}`]);
  $("search-meta").replaceChildren(...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, plain(value)))));
  $("search-meta").hidden = false;
}

function drawHits(answer) {
  const most = largestPart(answer.hits);
  $("hits").replaceChildren(...answer.hits.map((hit) => hitCard(hit, most)));
  $("page-before").disabled = search.page <= 1;
  $("page-after").disabled = answer.hits.length < search.k || search.page * search.k > LAST_OFFSET;
  $("page-number").textContent = `Page ${search.page}`;
  $("search-pages").hidden = $("page-before").disabled && $("page-after").disabled;
}

function noHits() {
  if (search.page > 1) return `No more hits: page ${search.page} is empty.`;
  if (search.filter.length) return `No hits for “${search.q}” with these filters. Remove a filter to see more.`;
  return `No hits for “${search.q}”.`;
}

function searchBody() {
  const body = { query: search.q, k: search.k, offset: (search.page - 1) * search.k };
  if (search.filter.length) body.filter = { must: conditions(search.filter) };
  if (search.model) body.model = search.model;
  if (search.explain) body.explain = true;
  if (search.channel === "dense") body.hybrid = false;
  // Without a constant, scores are fused.
  const given = COUNTS.filter((name) => search[name] !== "");
  if (search.channel === "hybrid") body.hybrid = Object.fromEntries(given.map((name) => [name, search[name]]));
  const facets = facetFields();
  if (facets.length) body.facets = facets;
  return body;
}

export async function showSearch(params, changed) {
  if (!changed) return;
  search = searchFrom(params);
  drawSearchForm();
  drawChips(search.filter, setFilter);
  clearError("search-error");
  const signal = fresh("search");
  if (search.q) say("search-status", "Searching…");
  $("hits").classList.toggle("busy", search.q !== "");
  await loadFields();
  if (signal.aborted) return;
  drawFilterEditor(search.filter);
  if (!search.q) return emptySearch("Type a query and press Enter. You can share the link to this page.");
  try {
    drawAnswer(await call("POST", "/search", { body: searchBody(), signal }));
  } catch (error) {
    if (error.name === "AbortError") return;
    emptySearch("");
    showError("search-error", error, () => route(true));
  }
}

function drawAnswer(answer) {
  $("hits").classList.remove("busy");
  drawHits(answer);
  drawMeta(answer);
  drawFacets(answer.facets ?? [], search.filter, setFilter);
  const count = answer.hits.length;
  say("search-status", count ? `${plural(count, "hit")} for “${search.q}”${search.page > 1 ? `, page ${search.page}` : ""}` : noHits());
}

function emptySearch(words) {
  say("search-status", words);
  $("hits").replaceChildren();
  $("hits").classList.remove("busy");
  $("search-meta").hidden = true;
  $("search-pages").hidden = true;
  drawFacets([], search.filter, setFilter);
}

function turnPage(step) {
  change({ page: search.page + step });
  $("search-status").focus({ preventScroll: true });
  window.scrollTo({ top: 0 });
}

function applyFilter(event) {
  event.preventDefault();
  const filter = editedFilter(search.filter);
  if (filter) setFilter(filter);
}

export function startSearch() {
  $("search-form").addEventListener("submit", (event) => { event.preventDefault(); change({}); });
  $("search-form").addEventListener("change", (event) => {
    $("search-weights").hidden = document.querySelector("[name=channel]:checked").value !== "hybrid";
    // The query box itself waits for Enter.
    if (event.target.id !== "search-query") change({});
  });
  $("filter-field").addEventListener("change", () => drawFieldEditor(search.filter));
  $("filter-form").addEventListener("submit", applyFilter);
  $("page-before").addEventListener("click", () => turnPage(-1));
  $("page-after").addEventListener("click", () => turnPage(1));
  onVersions(drawVersionChoice);

  const wide = matchMedia("(min-width: 52.01rem)");
  const fold = () => { $("search-side").open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
}
