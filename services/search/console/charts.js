// Charts of a training log: a line for each value, and areas for the shares of levels.

import { el, svg } from "./elements.js";
import { percent, short, whole } from "./words.js";

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

export function lineChart(title, all) {
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

export function levelChart(all) {
  const title = "Level shares";
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
