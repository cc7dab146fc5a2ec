// Groups of the map's points: the most frequent values of a field, each with a colour and a shape, a legend and a summary in words.

import { $, el, head, cell, redraw, row, svg, table } from "./elements.js";
import { percent, plain, plural, whole } from "./words.js";

const MOST = 8;

// Paths around 0, 0 with about the same area.
const SHAPES = [
  "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
  "M-4 -4h8v8h-8z",
  "M0 -5.6L5.2 3.8H-5.2z",
  "M0 -5.8L5.8 0L0 5.8L-5.8 0z",
  "M0 5.6L5.2 -3.8H-5.2z",
  "M-1.8 -5.4h3.6v3.6h3.6v3.6h-3.6v3.6h-3.6v-3.6h-3.6v-3.6h3.6z",
  "M0 -6L1.6 -2L5.8 -1.8L2.5 .9L3.6 5L0 2.7L-3.6 5L-2.5 .9L-5.8 -1.8L-1.6 -2z",
  "M-5.4 -3.2L-3.2 -5.4L0 -2.2L3.2 -5.4L5.4 -3.2L2.2 0L5.4 3.2L3.2 5.4L0 2.2L-3.2 5.4L-5.4 3.2L-2.2 0z",
];
const SMALL = "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z";

// The most frequent groups, then the other values, then items without a value.
export function groupPoints(points, field) {
  const counts = new Map();
  for (const { group } of points) if (group !== null) counts.set(group, (counts.get(group) ?? 0) + 1);
  const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, MOST);
  const groups = names.map((name, at) =>
    ({ name: `=${name}`, words: name, kind: `m${at + 1}`, shape: SHAPES[at], points: points.filter((one) => one.group === name) }));
  const other = points.filter((one) => one.group !== null && !names.includes(one.group));
  const none = points.filter((one) => one.group === null);
  const words = field ? `no ${field}` : "all items";
  if (other.length) groups.push({ name: "other", words: `other (${plural(counts.size - names.length, "value")})`, kind: "m0", shape: SMALL, points: other });
  if (none.length) groups.push({ name: "none", words, kind: field ? "m9" : "m1", shape: SMALL, points: none });
  return groups;
}

const swatch = ({ kind, shape }) => svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, svg("path", { class: kind, d: shape }));

export function drawLegend(groups, hidden, toggle) {
  redraw($("map-legend"), groups.map((group) => el("li", {}, el("button", {
    type: "button", key: group.name, "aria-pressed": String(!hidden.has(group.name)), onclick: () => toggle(group.name),
    "aria-label": `${group.words}, ${plural(group.points.length, "item")}`,
  }, swatch(group), el("span", { dir: "auto" }, group.words), el("span", { class: "count" }, whole(group.points.length))))));
}

// ---- Summary in words ----

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const centre = ({ points }) => ({ x: median(points.map((one) => one.x)), y: median(points.map((one) => one.y)) });
const distance = (a, b) => Math.hypot(a.x - b.x, a.y - b.y);

function placeWords({ x, y }) {
  const part = (value, names) => names[Math.min(2, Math.floor(3 * value))];
  const words = [part(y, ["top", "", "bottom"]), part(x, ["left", "", "right"])].filter(Boolean);
  return words.join(" ") || "middle";
}

export function drawSummary(groups, field) {
  const total = groups.reduce((sum, group) => sum + group.points.length, 0);
  const centres = groups.map(centre);
  const rows = groups.map((group, at) => {
    const near = centres.map((other, to) => ({ to, gap: distance(centres[at], other) }))
      .filter(({ to }) => to !== at && groups[to].kind !== "m0").sort((a, b) => a.gap - b.gap)[0];
    const typical = [...group.points].sort((a, b) => distance(a, centres[at]) - distance(b, centres[at]))[0];
    return row(group.words, cell(whole(group.points.length)), cell(percent(100 * group.points.length / total)),
      cell(placeWords(centres[at]), null), cell(near ? groups[near.to].words : "–", null), cell(plain(typical.title), "title"));
  });
  const heads = [head(field || "Group"), head("Items", "number"), head("Share", "number"), head("Centre"), head("Nearest group"),
    head("Item at the centre", "title")];
  $("map-summary").replaceChildren(table(heads, rows));
}
