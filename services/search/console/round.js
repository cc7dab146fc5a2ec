// One round: what it learned, the gate's measurements on each split, and the queries that changed.

import { $, clamp, el, head, sized, table } from "./elements.js";
import { changedQueries, unclickedQueries } from "./queries.js";
import { began, reasonList, roundVerdict, rounds, servedTag, splitVerdict, stageList } from "./rounds.js";
import { linkTo, view } from "./route.js";
import { call, clearError, fresh, passes, say, showError } from "./service.js";
import { duration, isNumber, isRange, plain, plural, signed, whole } from "./words.js";

const POLL = 15000;
let timer = 0;
let shown = null; // Round on the page.

export async function showRound(number) {
  clearTimeout(timer);
  const signal = fresh("training");
  if (String(shown?.number) !== number) {
    shown = null;
    $("round").replaceChildren();
    $("round-neighbours").replaceChildren();
    say("round-status", `Loading round ${number}…`);
  }
  try {
    const round = await call("GET", `/rounds/${encodeURIComponent(number)}`, { signal });
    clearError("round-error");
    say("round-status", "");
    if (JSON.stringify(round) !== JSON.stringify(shown)) drawRound(round);
  } catch (error) {
    if (error.name === "AbortError") return;
    say("round-status", "");
    showError("round-error", error, () => showRound(number));
    if (!passes(error) || error.status === 404) return;
  }
  if (shown?.ended_at !== null) return;
  const isShown = () => view === "training" && !document.hidden && !$("training-round").hidden;
  timer = setTimeout(() => { if (isShown()) showRound(number); }, POLL);
}

function drawRound(round) {
  shown = round;
  drawNeighbours(round.number);
  $("round").replaceChildren(...[
    el("div", { class: "round-title" }, el("h1", {}, `Round ${whole(round.number)}`), roundVerdict(round), servedTag(round.version)),
    roundFacts(round), el("section", { class: "learned", "aria-label": "Learned" }, stageList(round.stages)),
    outcome(round), ...round.splits.map((split) => splitPart(split, round)),
    (round.unclicked || round.splits.length > 0) && unclickedQueries(round.unclicked),
  ].filter(Boolean));
}

// Links to the rounds before and after, if the list is loaded.
function drawNeighbours(number) {
  const isKnown = (to) => (rounds ?? []).some((one) => one.number === to);
  const link = (to, words) => isKnown(to) && el("a", { href: linkTo("training", { round: to }) }, words);
  const links = [link(number - 1, `‹ Round ${whole(number - 1)}`), link(number + 1, `Round ${whole(number + 1)} ›`)];
  $("round-neighbours").replaceChildren(...links.filter(Boolean));
}

function roundFacts(round) {
  const lasted = round.ended_at === null ? "still running" : duration(round.ended_at - round.began_at);
  const pairs = [["began", began(round)], ["duration", lasted], ["version", plain(round.version)], ["trained from", plain(round.parent)]];
  return el("dl", { class: "meta" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function outcome(round) {
  if (round.reasons.length) {
    return el("section", { class: "panel refusal" }, el("h2", {}, round.version ? "Why the gate refused it" : "Why it failed"), reasonList(round.reasons));
  }
  if (round.splits.length) return null;
  return el("p", { class: "status" }, round.ended_at === null ? "Not measured yet: the gate compares the candidate when its training has ended."
    : "No measurements are kept for this round.");
}

// ---- The gate's measurements ----

function splitPart(split, round) {
  const title = `Split ${split.split}`;
  return el("section", { class: "panel", "aria-label": title, "data-split": split.split },
    el("div", { class: "round-title" }, el("h2", {}, title), splitVerdict(split),
      isNumber(split.drift) && el("span", { class: "range" }, `drift of the query vectors: ${split.drift.toFixed(3)}`)),
    gateTable(split), changedQueries(split, round));
}

const shownValue = (value) => (isNumber(value) ? value.toFixed(1) : "–");

function significance({ difference, significant }) {
  const words = (kind, sign, text) => el("span", { class: `delta ${kind}` }, sign, el("span", { class: "words-of-sign" }, ` ${text}`));
  if (!isNumber(difference)) return words("", "–", "no values");
  if (!significant) return words("", "○", "not significant");
  return difference > 0 ? words("up", "▲", "better") : words("down", "▼", "worse");
}

// One scale per split; the middle is no difference.
function differencePlot({ difference, interval }, most) {
  const place = (value) => clamp(0.5 + value / (2 * most));
  return el("span", { class: "whisker", "aria-hidden": "true" },
    isRange(interval) && sized(el("i"), { left: place(interval[0]), width: place(interval[1]) - place(interval[0]) }),
    isNumber(difference) && sized(el("b"), { left: place(difference) }));
}

function gateRow(one, most) {
  const range = isRange(one.interval) && `${signed(one.interval[0], 1)} to ${signed(one.interval[1], 1)}`;
  return el("tr", { "data-metric": one.metric }, el("th", { scope: "row" }, one.metric),
    el("td", { class: "number" }, shownValue(one.served)), el("td", { class: "number" }, shownValue(one.candidate)),
    el("td", { class: "number difference" }, el("b", {}, isNumber(one.difference) ? signed(one.difference, 1) : "–")),
    el("td", { class: "interval" }, el("span", { class: "range" }, range || "")),
    el("td", { class: "plot" }, differencePlot(one, most)),
    el("td", {}, significance(one)));
}

function gateTable({ rows }) {
  if (!rows.length) return el("p", { class: "note" }, "No metrics are kept.");
  const ends = rows.flatMap((one) => [one.difference, ...(one.interval ?? [])]).filter(isNumber).map(Math.abs);
  const most = 1.05 * Math.max(0, ...ends) || 1;
  const slices = [...new Set(rows.map((one) => one.slice))];
  const heads = [head("Metric"), head("Served", "number"), head("Candidate", "number"), head("Difference", "number"), head("95 % interval", "interval"),
    el("th", { scope: "col", class: "plot", "aria-hidden": "true" }, el("span", {}, "◂ worse"), el("span", {}, "better ▸")),
    head(el("span", { class: "words-of-sign" }, "Significance"))];
  const groups = slices.map((slice) => {
    const own = rows.filter((one) => one.slice === slice);
    const count = el("span", { class: "range" }, plural(own[0].num_queries, "query", "queries"));
    const title = el("th", { scope: "rowgroup", colspan: heads.length }, slice, count);
    return el("tbody", { "data-slice": slice }, el("tr", {}, title), own.map((one) => gateRow(one, most)));
  });
  const all = table(heads, [], { class: "gate" });
  all.querySelector("tbody").replaceWith(...groups);
  return [el("div", { class: "scroll", role: "region", "aria-label": "Metrics of the gate", tabindex: "0" }, all),
    el("p", { class: "note" }, "▲ significantly better, ▼ significantly worse, ○ not significant: paired tests with Holm's correction.")];
}
