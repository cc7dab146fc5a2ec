// Fields of the catalogue, and the side of the search: filter editor, chips and facets.

import { $, button, el, option, redraw, setOptions } from "./elements.js";
import { rangeOf, rangeWords, valuesOf, withRange, withValue } from "./filters.js";
import { call } from "./service.js";
import { plain, plural, whole } from "./words.js";

let catalogue = null; // Promise of GET /fields.
let fields = [];

export function forgetFields() {
  catalogue = null;
}

// Fields of the catalogue; none if they cannot be loaded.
export async function loadFields() {
  catalogue ??= call("GET", "/fields");
  try {
    fields = (await catalogue).fields ?? [];
  } catch {
    catalogue = null;
    fields = [];
  }
  return fields;
}

function drawFieldChoice() {
  const chosen = $("filter-field").value;
  setOptions($("filter-field"), [option("", catalogue ? "Choose a field" : "Cannot load the fields"), ...fields.map((one) => option(one.name))], chosen);
}

// Show a facet if the field's common values cover at least half of its items.
export function facetFields() {
  const covered = (one) => (one.values ?? []).reduce((sum, value) => sum + value.count, 0) / (one.num_items || 1);
  const place = (one) => ["category", "brand"].indexOf(one.name);
  return fields.filter((one) => one.kinds?.includes("text") && one.values?.length > 1 && (place(one) >= 0 || covered(one) >= 0.5))
    .sort((a, b) => place(b) - place(a)).slice(0, 6).map((one) => one.name);
}

export function drawFilterEditor(filter) {
  drawFieldChoice();
  drawFieldEditor(filter);
}

export function drawFieldEditor(filter) {
  const field = fields.find((one) => one.name === $("filter-field").value);
  if (!field) return redraw($("filter-editor"), []);
  const kinds = field.kinds ?? [];
  redraw($("filter-editor"), [
    kinds.includes("text") && valueEditor(field),
    kinds.includes("number") && rangeEditor(field, filter),
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

function rangeEditor(field, filter) {
  const range = rangeOf(filter, field.name);
  const end = (id, words, value, hint) => el("label", {}, words,
    el("input", { id, key: id, type: "number", step: "any", value, placeholder: plain(hint) }));
  return el("div", { class: "row" }, end("filter-min", "Minimum", range.gte, field.min), end("filter-max", "Maximum", range.lte, field.max));
}

// The filter with the editor's condition, or null if no field is chosen.
export function editedFilter(filter) {
  const field = $("filter-field").value;
  if (!field) return null;
  const typed = $("filter-value")?.value.trim();
  if (typed) {
    filter = withValue(filter, field, typed, true);
    $("filter-value").value = "";
  }
  if ($("filter-min")) filter = withRange(filter, field, $("filter-min").valueAsNumber, $("filter-max").valueAsNumber);
  return filter;
}

export function drawChips(filter, change) {
  const chip = (text, rest) => button(`${text} ×`, () => change(rest), { key: text, "aria-label": `Remove the filter ${text}` });
  const chips = filter.flatMap((one) => one.in
    ? one.in.map((value) => chip(`${one.field}: ${plain(value)}`, withValue(filter, one.field, value, false)))
    : [chip(`${one.field}: ${rangeWords(one)}`, withRange(filter, one.field))]);
  if (chips.length > 1) chips.push(button("Clear all", () => change([]), { class: "plain", key: "clear" }));
  redraw($("search-chips"), chips, $("search-status"));
  $("search-chips").hidden = !chips.length;
}

export function drawFacets(facets, filter, change) {
  redraw($("facets"), facets.map(({ field, values }) => {
    const chosen = valuesOf(filter, field);
    // Keep chosen values visible, so that they can be removed.
    const missing = chosen.filter((value) => !values.some((one) => one.value === value)).map((value) => ({ value, count: 0 }));
    const shown = [...values.slice(0, 8), ...values.slice(8).filter((one) => chosen.includes(one.value)), ...missing];
    return shown.length > 0 && el("section", { class: "facet" }, el("h2", {}, field),
      el("ul", {}, shown.map(({ value, count }) => el("li", {},
        el("button", {
          type: "button", key: `${field} ${value}`, "aria-pressed": String(chosen.includes(value)),
          "aria-label": `${field}: ${plain(value)}, ${plural(count, "hit")}`,
          onclick: () => change(withValue(filter, field, value, !chosen.includes(value))),
        }, el("span", { dir: "auto" }, plain(value)), el("span", { class: "count" }, whole(count)))))));
  }), $("search-status"));
}
