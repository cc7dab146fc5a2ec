// Souk's web console: search, compare, models and training, from the service's routes.
// Text from the service or the user is never inserted as markup.

// ---- Elements ----

const $ = (id) => document.getElementById(id);

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "key") node.dataset.key = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const svg = (tag, props, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
const button = (text, onclick, props) => el("button", { type: "button", onclick, ...props }, text);
const option = (value, text = value) => el("option", { value }, text);

const head = (text, kind) => el("th", { scope: "col", class: kind }, text);
const cell = (text, kind = "number") => el("td", { class: kind }, text);
const row = (title, ...cells) => el("tr", {}, el("th", { scope: "row" }, title), cells);
const table = (heads, rows, props) => el("table", props, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));

// Lengths are set through the CSSOM: the content policy forbids style attributes.
function sized(node, styles) {
  for (const [name, share] of Object.entries(styles)) node.style[name] = `${(100 * share).toFixed(2)}%`;
  return node;
}

const clamp = (value, lo = 0, hi = 1) => Math.min(hi, Math.max(lo, value));
const bar = (share, kind = "") =>
  el("span", { class: `bar ${kind}`, "aria-hidden": "true" }, sized(el("i"), { width: clamp(share || 0) }));

// Replaces a node's content and restores the focus to the element with the same key.
function redraw(node, children, fallback) {
  const held = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const open = new Set([...node.querySelectorAll("details[open][data-key]")].map((part) => part.dataset.key));
  node.replaceChildren(...[children].flat(3).filter(Boolean));
  for (const part of node.querySelectorAll("details[data-key]")) part.open ||= open.has(part.dataset.key);
  if (held === undefined) return;
  const again = [...node.querySelectorAll("[data-key]")].find((part) => part.dataset.key === held);
  (again ?? fallback)?.focus({ preventScroll: true });
}

function setOptions(select, options, value) {
  select.replaceChildren(...options);
  // Keep a value from a link even if it is not an option, so that the link stays valid.
  if (![...select.options].some((one) => one.value === value)) select.append(option(value));
  select.value = value;
}

// ---- Numbers and words ----

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const whole = (value) => (isNumber(value) ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : "–");
const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;
const score = (value) => (isNumber(value) ? value.toPrecision(4) : "–");
const percent = (value) => (isNumber(value) ? `${value.toFixed(1)} %` : "–");
function signed(value, digits) {
  const size = Math.abs(value).toFixed(digits);
  return Number(size) === 0 ? `±${size}` : `${value > 0 ? "+" : "−"}${size}`;
}
const isRange = (range) => Array.isArray(range) && range.length === 2 && range.every(isNumber);

function short(value) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001 || size >= 1e6) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

function plain(value) {
  if (value === null || value === undefined) return "–";
  if (isNumber(value)) return Number.isInteger(value) ? String(value) : short(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function moment(ms) {
  if (!isNumber(ms)) return "–";
  return new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

// ---- Calls to the service ----

const trouble = (status, message) => Object.assign(new Error(message), { status });

function readJson(text) {
  try { return JSON.parse(text); } catch { return null; }
}

// A quiet call never prompts for a key: the user did not start it.
async function call(method, path, { body, signal, quiet = false } = {}) {
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
function fresh(slot) {
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

function showError(id, error, again) {
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
const passes = (error) => error.status !== 401 && error.status !== 403;

const say = (id, words) => { $(id).textContent = words; };
// Leaves unchanged text alone, so that screen readers do not repeat it.
const sayOnce = (id, words) => { if ($(id).textContent !== words) say(id, words); };
const clearError = (id) => $(id).replaceChildren();

// ---- Dialogs ----

let asking = Promise.resolve();

// Resolves to the text (or true for a plain confirmation), or to null when cancelled.
function ask({ title, text, ok, label, value = "", secret = false }) {
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

// Concurrent calls share one dialog. Resolves to whether a key was entered.
function askKey(refused) {
  keyAsked ??= ask({
    title: refused ? "The key was rejected" : "API key",
    text: ["The service requires a key. It is sent with every request and kept until you close this tab."],
    ok: "Use key", label: "Key", secret: true,
  }).then((key) => {
    keyAsked = null;
    if (!key) return false;
    sessionStorage.setItem("souk-key", key);
    catalogue = null;
    loadVersions();
    return true;
  });
  return keyAsked;
}

// ---- Route: the hash names the view and what it shows ----

const VIEWS = ["search", "compare", "models", "training"];
const drawn = {}; // Current parameters of each view.
let view = null;
let routed = null; // Current hash.

function readHash() {
  const [name, ...rest] = location.hash.slice(1).split("?");
  return { name: VIEWS.includes(name) ? name : "search", params: new URLSearchParams(rest.join("?")) };
}

function go(name, params) {
  const text = params.toString();
  const hash = text ? `#${name}?${text}` : `#${name}`;
  if (hash === location.hash) return route(true);
  location.hash = hash;
  // The hash event would come too late for a second key press.
  route();
}

function route(again = false) {
  const { name, params } = readHash();
  routed = location.hash;
  if (name !== view) {
    view = name;
    for (const one of VIEWS) {
      const chosen = one === name;
      $(`view-${one}`).hidden = !chosen;
      $(`tab-${one}`).setAttribute("aria-selected", String(chosen));
      $(`tab-${one}`).tabIndex = chosen ? 0 : -1;
    }
  }
  const text = params.toString();
  const changed = again || drawn[name] !== text;
  drawn[name] = text;
  const query = params.get("q");
  const title = $(`tab-${name}`).textContent;
  document.title = query && (name === "search" || name === "compare") ? `${query} – ${title} – Souk` : `${title} – Souk`;
  if (name === "search" && changed) showSearch(params);
  if (name === "compare") showCompare(params, changed);
  if (name === "models") showModels();
  if (name === "training") showTraining();
}

const openTab = (name) => name !== view && go(name, new URLSearchParams(drawn[name] ?? ""));

function moveTab(event) {
  const at = VIEWS.indexOf(view);
  const to = { ArrowRight: at + 1, ArrowLeft: at + 3, Home: 0, End: 3 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  openTab(VIEWS[to % 4]);
  $(`tab-${VIEWS[to % 4]}`).focus();
}

// ---- Filter: a list of conditions, {field, in} or {field, gte, lte} ----

const isValue = (value) => ["string", "number", "boolean"].includes(typeof value);

// A link can contain anything: drop what is not a condition.
function readFilter(text) {
  const given = readJson(text);
  let filter = [];
  for (const one of Array.isArray(given) ? given : []) {
    if (typeof one?.field !== "string") continue;
    for (const value of [one.eq, ...(Array.isArray(one.in) ? one.in : [])]) {
      if (isValue(value)) filter = withValue(filter, one.field, value, true);
    }
    if (isNumber(one.gte) || isNumber(one.lte)) filter = withRange(filter, one.field, one.gte, one.lte);
  }
  return filter;
}

const valuesOf = (filter, field) => filter.find((one) => one.field === field && one.in)?.in ?? [];
const rangeOf = (filter, field) => filter.find((one) => one.field === field && !one.in) ?? {};

function withValue(filter, field, value, on) {
  const values = valuesOf(filter, field).filter((one) => one !== value);
  if (on) values.push(value);
  const others = filter.filter((one) => one.field !== field || !one.in);
  return values.length ? [...others, { field, in: values }] : others;
}

function withRange(filter, field, gte, lte) {
  const range = { field };
  if (isNumber(gte)) range.gte = gte;
  if (isNumber(lte)) range.lte = lte;
  const others = filter.filter((one) => one.field !== field || one.in);
  return Object.keys(range).length > 1 ? [...others, range] : others;
}

const conditions = (filter) => filter.map((one) => (one.in?.length === 1 ? { field: one.field, eq: one.in[0] } : one));

function rangeWords({ gte, lte }) {
  if (gte === undefined) return `up to ${plain(lte)}`;
  return lte === undefined ? `from ${plain(gte)}` : `${plain(gte)} to ${plain(lte)}`;
}

// ---- Search: state ----

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

function drawSearchForm() {
  $("search-query").value = search.q;
  document.querySelector(`[name=channel][value=${search.channel}]`).checked = true;
  $("search-weights").hidden = search.channel !== "hybrid";
  for (const name of COUNTS) $(`search-${name}`).value = search[name];
  setOptions($("search-k"), ["10", "20", "50", "100"].map((k) => option(k)), String(search.k));
  $("search-explain").checked = search.explain;
  drawVersionChoice();
}

// ---- Search: fields, filters and facets ----

let catalogue = null; // Promise of GET /fields.
let fields = [];
let answered = null; // Answer whose facets are shown.

async function loadFields() {
  catalogue ??= call("GET", "/fields");
  try {
    fields = (await catalogue).fields ?? [];
  } catch {
    catalogue = null;
    fields = [];
  }
  const chosen = $("filter-field").value;
  setOptions($("filter-field"), [option("", catalogue ? "Choose a field" : "Cannot load the fields"), ...fields.map((one) => option(one.name))], chosen);
}

// Show a facet if the field's common values cover at least half of its items.
function facetFields() {
  const covered = (one) => (one.values ?? []).reduce((sum, value) => sum + value.count, 0) / (one.num_items || 1);
  const place = (one) => ["category", "brand"].indexOf(one.name);
  return fields.filter((one) => one.kinds?.includes("text") && one.values?.length > 1 && (place(one) >= 0 || covered(one) >= 0.5))
    .sort((a, b) => place(b) - place(a)).slice(0, 6).map((one) => one.name);
}

const toggleValue = (field, value, on) => change({ filter: withValue(search.filter, field, value, on) });

function drawFilterEditor() {
  const field = fields.find((one) => one.name === $("filter-field").value);
  if (!field) return redraw($("filter-editor"), []);
  const kinds = field.kinds ?? [];
  redraw($("filter-editor"), [
    kinds.includes("text") && valueEditor(field),
    kinds.includes("number") && rangeEditor(field),
    el("div", { class: "actions" }, el("button", { id: "filter-apply", key: "apply" }, "Add filter")),
  ], $("filter-field"));
}

function valueEditor(field) {
  const common = (field.values ?? []).map(({ value, count }) => el("option", { value }, `${plain(value)} (${whole(count)})`));
  return [
    el("label", { for: "filter-value" }, "Value: choose or type one"),
    el("input", { id: "filter-value", key: "typed", list: "filter-values", autocomplete: "off", spellcheck: "false", dir: "auto" }),
    el("datalist", { id: "filter-values" }, common),
  ];
}

function rangeEditor(field) {
  const range = rangeOf(search.filter, field.name);
  const end = (id, words, value, hint) => el("label", {}, words,
    el("input", { id, key: id, type: "number", step: "any", value, placeholder: plain(hint) }));
  return el("div", { class: "row" }, end("filter-min", "Minimum", range.gte, field.min), end("filter-max", "Maximum", range.lte, field.max));
}

function applyFilter(event) {
  event.preventDefault();
  const field = $("filter-field").value;
  let filter = search.filter;
  const typed = $("filter-value")?.value.trim();
  if (typed) {
    filter = withValue(filter, field, typed, true);
    $("filter-value").value = "";
  }
  if ($("filter-min")) filter = withRange(filter, field, $("filter-min").valueAsNumber, $("filter-max").valueAsNumber);
  if (field) change({ filter });
}

function drawChips() {
  const chip = (text, filter) => button(`${text} ×`, () => change({ filter }), { key: text, "aria-label": `Remove the filter ${text}` });
  const chips = search.filter.flatMap((one) => one.in
    ? one.in.map((value) => chip(`${one.field}: ${plain(value)}`, withValue(search.filter, one.field, value, false)))
    : [chip(`${one.field}: ${rangeWords(one)}`, withRange(search.filter, one.field))]);
  if (chips.length > 1) chips.push(button("Clear all", () => change({ filter: [] }), { class: "plain", key: "clear" }));
  redraw($("search-chips"), chips, $("search-status"));
  $("search-chips").hidden = !chips.length;
}

function drawFacets() {
  const facets = answered?.facets ?? [];
  redraw($("facets"), facets.map(({ field, values }) => {
    const chosen = valuesOf(search.filter, field);
    // Keep chosen values visible, so that they can be removed.
    const missing = chosen.filter((value) => !values.some((one) => one.value === value)).map((value) => ({ value, count: 0 }));
    const shown = [...values.slice(0, 8), ...values.slice(8).filter((one) => chosen.includes(one.value)), ...missing];
    return shown.length > 0 && el("section", { class: "facet" }, el("h2", {}, field),
      el("ul", {}, shown.map(({ value, count }) => el("li", {},
        el("button", {
          type: "button", key: `${field} ${value}`, "aria-pressed": String(chosen.includes(value)),
          "aria-label": `${field}: ${plain(value)}, ${plural(count, "hit")}`,
          onclick: () => toggleValue(field, value, !chosen.includes(value)),
        }, el("span", { dir: "auto" }, plain(value)), el("span", { class: "count" }, whole(count)))))));
  }), $("search-status"));
}

// ---- Search: hits ----

const HEAD = ["id", "title", "text", "score", "rank", "explain", "brand", "price", "category"];

function facts(hit, more) {
  return el("p", { class: "facts" },
    hit.brand && el("b", { dir: "auto" }, plain(hit.brand)),
    hit.price !== undefined && hit.price !== null && el("span", {}, "price ", el("b", {}, isNumber(hit.price) ? hit.price.toFixed(2) : plain(hit.price))),
    hit.category && el("span", { dir: "auto" }, plain(hit.category)), more);
}

// Flattens attributes nested one level.
function fieldRows(hit) {
  const rows = [];
  if (hit.text) rows.push(["text", hit.text]);
  for (const [name, value] of Object.entries(hit)) {
    if (HEAD.includes(name)) continue;
    if (value && typeof value === "object" && !Array.isArray(value)) {
      for (const [part, inner] of Object.entries(value)) rows.push([`${name}.${part}`, plain(inner)]);
    } else {
      rows.push([name, Array.isArray(value) ? value.map(plain).join(", ") : plain(value)]);
    }
  }
  return rows;
}

function allFields(hit, key) {
  const rows = fieldRows(hit);
  return rows.length > 0 && el("details", { key }, el("summary", {}, "All fields"),
    el("dl", { class: "fields" }, rows.map(([name, value]) => [el("dt", {}, name), el("dd", { dir: "auto" }, value)])));
}

const FEATURES = { overlap: "term overlap", trigrams: "letter trigrams", missing_numbers: "missing numbers", translation: "translations" };

// What the score is made of beside the channels.
const features = ({ terms, reranker }) => ({ ...terms, ...(reranker && { reranker }) });

function explanation(hit, most) {
  const { channels, terms, overlap } = hit.explain;
  const part = (words, share, kind) => cell(el("div", { class: "part" }, words, bar(share, kind)), null);
  const rows = Object.entries(channels ?? {}).filter(([, one]) => one).map(([name, one]) =>
    row(name, cell(whole(one.rank)), cell(score(one.score)), cell(short(one.weight)), part(score(one.part), one.part / most, name)));
  for (const [name, one] of Object.entries(features(hit.explain))) {
    rows.push(row(FEATURES[name] ?? name, cell(""), cell(score(one.value)), cell(short(one.weight)), part(score(one.part), Math.abs(one.part) / most, "overlap")));
  }
  if (!terms && isNumber(overlap)) {
    rows.push(el("tr", {}, el("th", { scope: "row", colspan: "4" }, "Term overlap with the query"), part(percent(100 * overlap), overlap, "overlap")));
  }
  const heads = [head("Channel"), ...["Rank", "Score", "Weight"].map((name) => head(name, "number")), head("Part")];
  return el("div", { class: "explain" }, table(heads, rows, { "aria-label": "Score parts" }));
}

function hitCard(hit, most) {
  return el("li", { class: "card" },
    el("span", { class: "rank", "aria-label": `Rank ${whole(hit.rank)}` }, whole(hit.rank)),
    el("div", {},
      el("h3", { dir: "auto" }, plain(hit.title)), facts(hit), el("p", { class: "id" }, plain(hit.id)),
      hit.text && el("p", { class: "words", dir: "auto" }, plain(hit.text)), allFields(hit)),
    el("p", { class: "score" }, score(hit.score), " ", el("small", {}, "score")),
    hit.explain && explanation(hit, most));
}

function drawMeta(answer) {
  const pairs = [["took", isNumber(answer.took_ms) ? `${answer.took_ms.toFixed(1)} ms` : "–"], ["model", answer.model], ["index", answer.index], ["catalogue", whole(answer.catalogue)]];
  if (isNumber(answer.reranked)) pairs.push(["reranked", answer.reranked ? `first ${whole(answer.reranked)}` : "no: not in time"]);
  if (answer.experiment) pairs.push(["experiment", `${plain(answer.experiment.name)}, arm ${plain(answer.experiment.arm)}`]);
  $("search-meta").replaceChildren(...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, plain(value)))));
  $("search-meta").hidden = false;
}

function drawHits(answer) {
  const explained = (hit) => Object.values({ ...hit.explain?.channels, ...features(hit.explain ?? {}) });
  const parts = answer.hits.flatMap((hit) => explained(hit).map((one) => Math.abs(one?.part ?? 0)));
  // One scale per page, so that bars are comparable.
  const most = Math.max(...parts, 0) || 1;
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

async function showSearch(params) {
  search = searchFrom(params);
  drawSearchForm();
  drawChips();
  clearError("search-error");
  const signal = fresh("search");
  if (search.q) say("search-status", "Searching…");
  $("hits").classList.toggle("busy", search.q !== "");
  await loadFields();
  if (signal.aborted) return;
  drawFilterEditor();
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
  answered = answer;
  $("hits").classList.remove("busy");
  drawHits(answer);
  drawMeta(answer);
  drawFacets();
  const count = answer.hits.length;
  say("search-status", count ? `${plural(count, "hit")} for “${search.q}”${search.page > 1 ? `, page ${search.page}` : ""}` : noHits());
}

function emptySearch(words) {
  say("search-status", words);
  $("hits").replaceChildren();
  $("hits").classList.remove("busy");
  $("search-meta").hidden = true;
  $("search-pages").hidden = true;
  answered = null;
  drawFacets();
}

function turnPage(step) {
  change({ page: search.page + step });
  $("search-status").focus({ preventScroll: true });
  window.scrollTo({ top: 0 });
}

// ---- Compare: the two pages ----

const CHANNELS = ["dense", "lexical", "hybrid"];
const PAGE = 10;
const SIDES = ["left", "right"];
const NAMES = { left: "A", right: "B" };
let pair = null; // Current comparison: hits, grades, and the vote once it is counted.

const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const comparing = (params) => ({
  q: params.get("q") ?? "", left: params.get("left") || "dense", right: params.get("right") || "hybrid",
});

function channelOptions() {
  const groups = versions.filter((one) => one.loaded).map((one) => el("optgroup", { label: one.version },
    CHANNELS.map((name) => option(`${one.version}/${name}`))));
  return [...CHANNELS.map((name) => option(name)), ...groups];
}

function drawVoter() {
  const voter = localStorage.getItem("souk-voter");
  $("voter-button").textContent = voter ? `Voting as ${voter}` : "Set voter name";
}

async function askVoter() {
  const voter = await ask({
    title: "Voter name", text: ["Your name is stored with each vote and kept in this browser."],
    ok: "Save", label: "Name", value: localStorage.getItem("souk-voter") ?? "",
  });
  if (voter) localStorage.setItem("souk-voter", voter);
  drawVoter();
  return voter || null;
}

function submitCompare(event) {
  event.preventDefault();
  const params = new URLSearchParams();
  if ($("compare-query").value.trim()) params.set("q", $("compare-query").value.trim());
  for (const side of SIDES) params.set(side, $(`compare-${side}`).value);
  go("compare", params);
}

async function showCompare(params, changed) {
  loadSummary();
  if (!changed) return;
  const state = comparing(params);
  $("compare-query").value = state.q;
  for (const side of SIDES) setOptions($(`compare-${side}`), channelOptions(), state[side]);
  drawVoter();
  clearError("compare-error");
  const signal = fresh("compare");
  pair = null;
  $("pair").hidden = $("vote").hidden = true;
  if (!state.q) return say("compare-status", "Type a query and press Enter. The pages do not show which channel produced them.");
  if (state.left === state.right) return say("compare-status", "Choose two different channels.");
  say("compare-status", "Searching both channels…");
  try {
    const answer = await call("POST", "/compare", { body: { query: state.q, left: state.left, right: state.right, k: PAGE }, signal });
    pair = { ...state, id: newId(), comparison: answer.comparison, grades: new Map(), verdict: null, shown: null,
      hits: { left: answer.left.hits, right: answer.right.hits } };
  } catch (error) {
    if (error.name !== "AbortError") say("compare-status", "");
    return showError("compare-error", error, () => route(true));
  }
  const ids = SIDES.map((side) => pair.hits[side].map((hit) => hit.id));
  const both = ids[0].filter((id) => ids[1].includes(id)).length;
  const same = ids[0].length === ids[1].length && ids[0].every((id, at) => id === ids[1][at]);
  say("compare-status", same ? "Both pages show the same items in the same order."
    : `Which page answers “${state.q}” better? ${plural(both, "item")} on both pages.`);
  drawPair();
}

function drawPair() {
  redraw($("pair"), SIDES.map(pageColumn));
  const first = $("pair").querySelector(".card");
  if (first && !$("pair").querySelector(".card[tabindex='0']")) first.tabIndex = 0;
  $("pair").hidden = $("vote").hidden = false;
  for (const one of $("vote").querySelectorAll("[data-verdict]")) {
    one.disabled = pair.verdict !== null;
    one.setAttribute("aria-pressed", String(pair.verdict === one.dataset.verdict));
  }
  $("vote-next").hidden = pair.verdict === null;
}

function pageColumn(side) {
  const name = `Page ${NAMES[side]}`;
  const hits = pair.hits[side];
  return el("section", { "aria-label": name, "data-side": side },
    el("h2", {}, name, pair.shown && el("span", { class: "tag" }, pair.shown[side])),
    hits.length ? el("ol", { class: "hits" }, hits.map((hit, at) => el("li", {}, pairCard(side, hit, at))))
      : el("p", { class: "status" }, "No hits on this page."));
}

// No scores: they would reveal the channel before the vote.
function pairCard(side, hit, at) {
  const grade = pair.grades.get(hit.id);
  const other = side === "left" ? "right" : "left";
  const also = pair.hits[other].findIndex((one) => one.id === hit.id);
  const key = `${side} ${at}`;
  const label = `${NAMES[side]}${at + 1}: ${plain(hit.title)}${grade === undefined ? "" : grade ? ", good" : ", not good"}`;
  const press = (words, good) => button(words, () => gradeItem(hit.id, good), {
    key: `${key} ${words}`, class: good ? "" : "not", "aria-pressed": String(grade === good), disabled: pair.verdict !== null,
  });
  return el("article", {
    class: `card ${grade === undefined ? "" : grade ? "good" : "notgood"}`, "aria-label": label, key, "data-item": hit.id,
    tabindex: pair.at === key ? "0" : "-1", onfocus: () => roam(key),
  },
  el("span", { class: "rank", "aria-hidden": "true" }, String(at + 1)),
  el("div", {},
    el("h3", { dir: "auto" }, plain(hit.title)),
    facts(hit, also >= 0 && el("span", { class: "also" }, `also ${NAMES[other]}${also + 1}`)),
    allFields(hit, `${key} fields`)),
  el("div", { class: "grade", role: "group", "aria-label": "Grade" }, press("Good", true), press("Not good", false)));
}

// One card is a tab stop; j and k move it.
function roam(key) {
  pair.at = key;
  for (const card of $("pair").querySelectorAll(".card")) card.tabIndex = card.dataset.key === key ? 0 : -1;
}

// A grade is about item and query, so it applies to both pages.
function gradeItem(id, good) {
  if (!pair || pair.verdict !== null) return;
  if (pair.grades.get(id) === good) pair.grades.delete(id);
  else pair.grades.set(id, good);
  drawPair();
}

function moveItem(step, side) {
  const cards = [...$("pair").querySelectorAll(".card")];
  let to = cards.indexOf(document.activeElement.closest(".card"));
  const size = pair.hits.left.length;
  if (!side) to += step;
  else to = Math.max(0, to >= size ? to - size : to) + (side === "right" ? size : 0);
  const card = cards[clamp(to, 0, cards.length - 1)];
  card?.focus();
  card?.scrollIntoView({ block: "nearest" });
}

function ballot(verdict, voter) {
  const { id, comparison, q: query, left, right } = pair;
  const grades = SIDES.flatMap((side) => pair.hits[side].filter((hit) => pair.grades.has(hit.id))
    .map((hit) => ({ side, item: hit.id, good: pair.grades.get(hit.id) })));
  return { id, comparison, query, left, right, verdict, grades, voter };
}

async function vote(verdict) {
  if (!pair || pair.verdict !== null || pair.sending) return;
  const now = pair;
  const voter = localStorage.getItem("souk-voter") ?? (await askVoter());
  if (!voter) return say("compare-status", "A vote needs a name: nothing was sent.");
  now.sending = true;
  clearError("compare-error");
  try {
    const answer = await call("POST", "/votes", { body: ballot(verdict, voter) });
    now.verdict = verdict;
    now.shown = { left: plain(answer.left), right: plain(answer.right) };
    if (pair === now) unblind(answer.counted);
    loadSummary();
  } catch (error) {
    // A retry keeps the vote's id, so that it counts once.
    if (pair === now) showError("compare-error", error, () => vote(verdict));
  } finally {
    now.sending = false;
  }
}

function unblind(counted) {
  const words = { good: "page A is better", same: "both pages are the same", bad: "page B is better" }[pair.verdict];
  say("compare-status", `Your vote: ${words}. Page A was ${pair.shown.left}, page B was ${pair.shown.right}.${counted ? "" : " This vote was not counted: the service already had it."}`);
  drawPair();
  $("vote-next").focus();
}

function focusBox(id) {
  $(id).focus();
  $(id).select();
}

// ---- Compare: the summary ----

async function loadSummary() {
  const signal = fresh("summary");
  try {
    const { pairs } = await call("GET", "/votes/summary", { signal });
    say("summary-status", pairs.length ? "" : "No votes yet.");
    $("summary").replaceChildren(...pairs.map(pairSummary));
  } catch (error) {
    if (error.name === "AbortError") return;
    say("summary-status", `Cannot load the votes: ${error.message}`);
    $("summary").replaceChildren();
  }
}

const rangeText = (range, digits = 1) => (isRange(range) ? `${range[0].toFixed(digits)} to ${range[1].toFixed(digits)}` : "");
const rateCell = (rate, range) => el("td", {}, percent(rate), " ", el("span", { class: "range" }, rangeText(range)));

function pairSummary(one) {
  const total = one.num_good + one.num_same + one.num_bad;
  const shares = [["good", one.num_good, `${one.left} better`], ["same", one.num_same, "Same"], ["bad", one.num_bad, `${one.right} better`]];
  const words = shares.map(([, count, name]) => `${name} ${whole(count)}`);
  return el("article", { class: "votes" },
    el("h3", {}, `${one.left} against ${one.right}`),
    el("div", { class: "stack", role: "img", "aria-label": `${plural(total, "vote")}: ${words.join(", ")}` },
      shares.map(([kind, count]) => count > 0 && sized(el("i", { class: kind }, whole(count)), { width: count / total }))),
    el("p", { class: "legend" }, shares.map(([kind, count, name]) => el("span", { class: kind }, `${name}: ${whole(count)}`))),
    el("div", { class: "gsb" },
      el("span", {}, "GSB ", el("b", {}, isNumber(one.gsb) ? signed(one.gsb, 1) : "–"), " ",
        el("span", { class: "range" }, isRange(one.gsb_interval) ? one.gsb_interval.map((end) => signed(end, 1)).join(" to ") : "")),
      whisker(one.gsb, one.gsb_interval)),
    table([head("Channel"), head("Query goodrate"), head("Item goodrate"), head("Graded items", "number wide")],
      SIDES.map((side) => row(one[side], rateCell(one[`${side}_goodrate`], one[`${side}_goodrate_interval`]),
        rateCell(one[`${side}_item_goodrate`], one[`${side}_item_goodrate_interval`]), cell(whole(one[`${side}_items`]), "number wide")))));
}

// Scale from −100 (the right channel always wins) to 100 (the left one always wins).
function whisker(value, range) {
  const place = (points) => clamp((points + 100) / 200);
  return el("span", { class: "whisker", "aria-hidden": "true" },
    isRange(range) && sized(el("i"), { left: place(range[0]), width: place(range[1]) - place(range[0]) }),
    isNumber(value) && sized(el("b"), { left: place(value) }));
}

// ---- Models ----

const PREFERRED = [/^hit_?rate@/i, /^good_?rate@/i, /^ndcg@10$/i, /^ndcg@/i, /^recall@/i, /^mrr/i, /./];
let versions = [];
let models = null; // Last answer of GET /models.
let modelsTimer = 0;

// Loads the versions for Search and Compare; without permission the lists stay short.
async function loadVersions() {
  try {
    ({ versions } = await call("GET", "/models", { quiet: true }));
  } catch {
    versions = [];
  }
  drawVersionChoice();
  for (const side of SIDES) setOptions($(`compare-${side}`), channelOptions(), $(`compare-${side}`).value || comparing(readHash().params)[side]);
}

function drawVersionChoice() {
  const loaded = versions.filter((one) => one.loaded).map((one) => option(one.version));
  setOptions($("search-version"), [option("", "served"), ...loaded], search.model);
  $("search-version-label").hidden = !loaded.length && !search.model;
}

async function showModels() {
  clearTimeout(modelsTimer);
  const signal = fresh("models");
  if (!models) say("models-status", "Loading versions…");
  try {
    const before = models;
    models = await call("GET", "/models", { signal });
    versions = models.versions;
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
  drawVersionChoice();
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

// ---- Training: polling ----

const CURVES = [["reward", "Reward"], ["loss", "Loss"], ["kl", "KL"], ["entropy", "Entropy"], ["learning_rate", "Learning rate"]];
const POLL = 5000;
let trainingTimer = 0;
let seen = { step: -1, at: 0 }; // Last step, and when it was first seen.

async function showTraining() {
  clearTimeout(trainingTimer);
  const signal = fresh("training");
  if (!$("charts").childElementCount && !$("training-status").textContent) say("training-status", "Loading curves…");
  try {
    drawTraining((await call("GET", "/training", { signal })).log);
    clearError("training-error");
  } catch (error) {
    if (error.name === "AbortError") return;
    say("training-status", "");
    if (!passes(error)) return showError("training-error", error, showTraining);
    showError("training-error", error);
  }
  trainingTimer = setTimeout(() => { if (view === "training" && !document.hidden) showTraining(); }, POLL);
}

const pointsOf = (list) => (Array.isArray(list) ? list : []).filter((one) => isNumber(one?.[0]) && isNumber(one?.[1]));
const levelsOf = (list) => (Array.isArray(list) ? list : []).filter((one) => isNumber(one?.[0]) && Array.isArray(one[1]) && one[1].every(isNumber));

function drawTraining(log) {
  if (!log) {
    $("charts").replaceChildren();
    return sayOnce("training-status", "No training folder is set: set search.training to a trainer's folder to see its curves here.");
  }
  const step = Math.max(-1, ...CURVES.map(([name]) => pointsOf(log[name]).at(-1)?.[0] ?? -1), levelsOf(log.levels).at(-1)?.[0] ?? -1);
  if (step !== seen.step) seen = { step, at: Date.now() };
  if (step < 0) sayOnce("training-status", "The training folder has no values yet.");
  else if (Date.now() - seen.at > 60000) sayOnce("training-status", `Step ${whole(step)}. No new step for over a minute: the trainer may have stopped.`);
  // Shown, but not announced by screen readers.
  else $("training-status").replaceChildren(el("span", { "aria-live": "off" }, `Step ${whole(step)}. Updating live.`));
  $("charts").replaceChildren(...CURVES.map(([name, title]) => lineChart(title, pointsOf(log[name]))), levelChart(levelsOf(log.levels)));
}

// ---- Training: charts ----

const BOX = { width: 360, height: 170, left: 52, right: 20, top: 8, bottom: 24 };
const VIEWBOX = `0 0 ${BOX.width} ${BOX.height}`;

// Thins long curves; keeps the last point.
function thin(points, most) {
  const stride = Math.ceil(points.length / most);
  return points.filter((_, at) => at % stride === 0 || at === points.length - 1);
}

function ticks(lo, hi, count) {
  const rough = (hi - lo) / count;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = ten * [1, 2, 5, 10].find((one) => one * ten >= rough);
  const list = [];
  for (let at = Math.ceil(lo / step); at * step <= hi + step * 1e-6; at += 1) list.push(Number((at * step).toPrecision(10)));
  return list;
}

const scale = (lo, hi, from, to) => (value) => from + ((value - lo) / (hi - lo || 1)) * (to - from);

function axes(x, y, xs, ys, yWords = short) {
  const { width, height, left, right, bottom } = BOX;
  return [
    ys.map((at) => [svg("line", { class: "axis", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
      svg("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, yWords(at))]),
    xs.map((at) => svg("text", { x: x(at), y: height - bottom + 16, "text-anchor": "middle" }, at >= 10000 ? `${short(at / 1000)}k` : short(at))),
  ];
}

function frame(points, lo, hi) {
  const { width, height, left, right, top, bottom } = BOX;
  const first = points[0][0];
  const last = Math.max(points.at(-1)[0], first + 1);
  return { x: scale(first, last, left, width - right), y: scale(lo, hi, height - bottom, top), xs: ticks(first, last, 5) };
}

const figure = (title, words, body) => el("figure", { class: "chart" },
  el("figcaption", {}, el("h2", {}, title), el("span", {}, words)), body);

function lineChart(title, all) {
  if (!all.length) return figure(title, "", el("p", { class: "status" }, "No values yet."));
  const points = thin(all, 1500);
  const values = points.map((one) => one[1]);
  let [lo, hi] = [Math.min(...values), Math.max(...values)];
  if (lo === hi) [lo, hi] = [lo - (Math.abs(lo) || 1) / 2, hi + (Math.abs(hi) || 1) / 2];
  const { x, y, xs } = frame(points, lo, hi);
  const path = points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const [step, value] = points.at(-1);
  const words = `step ${whole(step)}: ${short(value)}`;
  return figure(title, words, svg("svg", { viewBox: VIEWBOX, role: "img", "aria-label": `${title} by step, now at ${words}, from ${short(lo)} to ${short(hi)}` },
    axes(x, y, xs, ticks(lo, hi, 4)), svg("path", { class: "curve", d: path }), svg("circle", { class: "dot", r: 3.5, cx: x(step), cy: y(value) })));
}

function levelChart(all) {
  const title = "Level shares";
  if (!all.length) return figure(title, "", el("p", { class: "status" }, "No values yet."));
  const points = thin(all, 300).map(([step, levels]) => {
    const sum = levels.reduce((a, b) => a + b, 0) || 1;
    return [step, levels.map((one) => one / sum)];
  });
  const { x, y, xs } = frame(points, 0, 1);
  // A single point would have no width.
  if (points.length === 1) points.push([points[0][0] + 1, points[0][1]]);
  const below = (levels, count) => levels.slice(0, count).reduce((a, b) => a + b, 0);
  const edge = (count) => points.map(([step, levels]) => `${x(step).toFixed(1)} ${y(below(levels, count)).toFixed(1)}`);
  const areas = [0, 1, 2, 3].map((at) => svg("path", { class: `l${at + 1}`, d: `M${edge(at + 1).join("L")}L${edge(at).reverse().join("L")}Z` }));
  const last = points.at(-1)[1];
  const words = ["L1", "L2", "L3", "L4"].map((name, at) => `${name} ${percent(100 * (last[at] ?? 0))}`);
  const swatch = (at) => svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: `l${at + 1}`, width: 10, height: 10 }));
  return figure(title, `step ${whole(all.at(-1)[0])}`, [
    svg("svg", { viewBox: VIEWBOX, role: "img", "aria-label": `${title}: ${words.join(", ")}` },
      areas, axes(x, y, xs, [0, 0.5, 1], (share) => `${100 * share} %`)),
    el("p", { class: "levels" }, words.map((word, at) => el("span", {}, swatch(at), word))),
  ]);
}

// ---- Keys and start ----

const keysOn = () => localStorage.getItem("souk-keys") !== "off";
const isTyping = (node) => node.matches?.("textarea, select, [contenteditable], input:not([type=checkbox], [type=radio])");

function onKey(event) {
  if (!keysOn() || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || $("ask-dialog").open) return;
  if (event.key === "/") {
    event.preventDefault();
    if (view !== "compare" && view !== "search") openTab("search");
    return focusBox(`${view}-query`);
  }
  if (view !== "compare" || !pair) return;
  const id = document.activeElement?.closest?.(".card")?.dataset.item;
  const action = {
    1: () => vote("good"), 2: () => vote("same"), 3: () => vote("bad"),
    j: () => moveItem(1), k: () => moveItem(-1), h: () => moveItem(0, "left"), l: () => moveItem(0, "right"),
    g: () => id !== undefined && gradeItem(id, true), b: () => id !== undefined && gradeItem(id, false),
  }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function start() {
  for (const name of VIEWS) $(`tab-${name}`).addEventListener("click", () => openTab(name));
  $("tabs").addEventListener("keydown", moveTab);
  $("key-button").addEventListener("click", async () => { if (await askKey(false)) route(true); });

  $("search-form").addEventListener("submit", (event) => { event.preventDefault(); change({}); });
  $("search-form").addEventListener("change", (event) => {
    $("search-weights").hidden = document.querySelector("[name=channel]:checked").value !== "hybrid";
    // The query box itself waits for Enter.
    if (event.target.id !== "search-query") change({});
  });
  $("filter-field").addEventListener("change", drawFilterEditor);
  $("filter-form").addEventListener("submit", applyFilter);
  $("page-before").addEventListener("click", () => turnPage(-1));
  $("page-after").addEventListener("click", () => turnPage(1));

  $("compare-form").addEventListener("submit", submitCompare);
  $("voter-button").addEventListener("click", askVoter);
  for (const one of $("vote").querySelectorAll("[data-verdict]")) one.addEventListener("click", () => vote(one.dataset.verdict));
  $("vote-next").addEventListener("click", () => focusBox("compare-query"));
  $("rollback-button").addEventListener("click", rollBack);

  $("keys-on").checked = keysOn();
  $("keys-on").addEventListener("change", (event) => localStorage.setItem("souk-keys", event.target.checked ? "on" : "off"));
  document.addEventListener("keydown", onKey);

  const wide = matchMedia("(min-width: 52.01rem)");
  const fold = () => { $("search-side").open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();

  addEventListener("hashchange", () => { if (location.hash !== routed) route(); });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && (view === "models" || view === "training")) route();
  });
  route();
  loadVersions();
}

start();
