// A hit as a card: title, facts, all fields, and the parts of its score.

import { bar, cell, el, head, row, table } from "./elements.js";
import { isNumber, percent, plain, score, short, whole } from "./words.js";

const HEAD = ["id", "title", "text", "score", "rank", "explain", "brand", "price", "category"];

export function facts(hit, more) {
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

export function allFields(hit, key) {
  const rows = fieldRows(hit);
  return rows.length > 0 && el("details", { key }, el("summary", {}, "All fields"),
    el("dl", { class: "fields" }, rows.map(([name, value]) => [el("dt", {}, name), el("dd", { dir: "auto" }, value)])));
}

const FEATURES = { overlap: "term overlap", trigrams: "letter trigrams", missing_numbers: "missing numbers", translation: "translations" };

// Parts of the score beside the channels.
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

// One scale per page, so that bars are comparable.
export function largestPart(hits) {
  const explained = (hit) => Object.values({ ...hit.explain?.channels, ...features(hit.explain ?? {}) });
  return Math.max(...hits.flatMap((hit) => explained(hit).map((one) => Math.abs(one?.part ?? 0))), 0) || 1;
}

export function hitCard(hit, most) {
  return el("li", { class: "card" },
    el("span", { class: "rank", "aria-label": `Rank ${whole(hit.rank)}` }, whole(hit.rank)),
    el("div", {},
      el("h3", { dir: "auto" }, plain(hit.title)), facts(hit), el("p", { class: "id" }, plain(hit.id)),
      hit.text && el("p", { class: "words", dir: "auto" }, plain(hit.text)), allFields(hit)),
    el("p", { class: "score" }, score(hit.score), " ", el("small", {}, "score")),
    hit.explain && explanation(hit, most));
}
