// Rounds of the trainer, newest first: what each learned, and the gate's verdict.

import { $, button, el, redraw } from "./elements.js";
import { linkTo } from "./route.js";
import { call, sayOnce } from "./service.js";
import { loadVersions, served } from "./versions.js";
import { duration, moment, plain, plural, whole } from "./words.js";

const FEW = 10;
export let rounds; // Last answer of GET /rounds; null without a trainer.
let isLong = false; // Whether all rounds are shown.

const SIGNS = { passed: "✓", refused: "✕", failed: "!", running: "…" };

function verdictOf(round) {
  if (round.ended_at === null) return "running";
  if (round.passed) return "passed";
  return round.version ? "refused" : "failed";
}

function verdictTag(name) {
  return el("span", { class: `verdict ${name}` }, el("span", { "aria-hidden": "true" }, SIGNS[name]), name);
}

export const roundVerdict = (round) => verdictTag(verdictOf(round));
export const splitVerdict = (split) => verdictTag(split.passed ? "passed" : "refused");
export const servedTag = (version) => version && version === served && el("span", { class: "tag" }, "served");
export const began = (round) => moment(1000 * round.began_at);
const took = (round) => (round.ended_at === null ? "still running" : `took ${duration(round.ended_at - round.began_at)}`);

// The gate quotes names with backticks.
const reasonWords = (text) => text.replaceAll(" -> ", " → ").split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));
export const reasonList = (reasons) => el("ul", { class: "reasons" }, reasons.map((reason) => el("li", {}, reasonWords(reason))));

export const stageList = (stages) => el("ul", {}, stages.map(({ stage, fresh, why }) =>
  el("li", {}, el("b", {}, stage), ` ${plural(fresh, "new example")}`, el("span", { class: "range" }, why))));

export async function loadRounds(signal) {
  const before = JSON.stringify(rounds);
  ({ rounds } = await call("GET", "/rounds", { signal }));
  // A round that has ended may be served now.
  if (before !== undefined && before !== JSON.stringify(rounds)) loadVersions();
}

export function drawRounds() {
  if (rounds === undefined) return;
  sayOnce("rounds-status", summary());
  const shown = isLong ? rounds ?? [] : (rounds ?? []).slice(0, FEW);
  redraw($("rounds"), shown.length ? [
    roundTable(shown),
    rounds.length > FEW && button(isLong ? `Show the newest ${FEW}` : `Show all ${whole(rounds.length)} rounds`,
      () => { isLong = !isLong; drawRounds(); }, { key: "more", class: "more-button" }),
  ] : [], $("rounds-status"));
}

function summary() {
  if (rounds === null) return "No trainer is connected: set search.training to the trainer's address, such as http://127.0.0.1:8070, to see its rounds.";
  if (!rounds.length) return "No rounds yet: the first one begins when a stage is due.";
  const names = rounds.map(verdictOf);
  const count = (name) => names.filter((one) => one === name).length;
  const counts = Object.keys(SIGNS).filter(count).map((name) => `${whole(count(name))} ${name}`);
  return `${plural(rounds.length, "round")}: ${counts.join(", ")}.`;
}

// Explicit roles: the phone layout removes the table display.
function roundTable(shown) {
  const heads = ["Round", "Began", "Learned", "Version", "Verdict"];
  return el("table", { class: "versions rounds", role: "table", "aria-label": "Rounds" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads.map((name) => el("th", { scope: "col", role: "columnheader" }, name)))),
    el("tbody", { role: "rowgroup" }, shown.map(roundRow)));
}

function roundRow(round) {
  const data = (name, ...children) => el("td", { role: "cell", "data-name": name }, el("div", {}, children));
  return el("tr", { role: "row", "data-round": round.number },
    el("th", { scope: "row", role: "rowheader" },
      el("a", { href: linkTo("training", { round: round.number }), key: `round ${round.number}` }, `Round ${whole(round.number)}`)),
    data("Began", began(round), el("span", { class: "range" }, took(round))),
    data("Learned", stageList(round.stages)),
    data("Version", plain(round.version), " ", servedTag(round.version),
      round.parent && el("span", { class: "range" }, `from ${round.parent}`)),
    data("Verdict", roundVerdict(round), round.reasons.length > 0 && reasonList(round.reasons)));
}
