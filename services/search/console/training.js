// Training: what the trainer does now, its rounds, and live curves; with a round in the link, that round.

import { levelChart, lineChart } from "./charts.js";
import { $, el } from "./elements.js";
import { drawNow } from "./now.js";
import { showRound } from "./round.js";
import { drawRounds, loadRounds, rounds } from "./rounds.js";
import { view } from "./route.js";
import { call, clearError, fresh, passes, say, sayOnce, showError } from "./service.js";
import { onVersions } from "./versions.js";
import { isNumber, whole } from "./words.js";

const CURVES = [["reward", "Reward"], ["loss", "Loss"], ["kl", "KL"], ["entropy", "Entropy"], ["learning_rate", "Learning rate"],
  ["texts_per_second", "Texts per second"]];
const POLL = 5000;
const ROUNDS_POLL = 30000;
let timer = 0;
let seen = { step: -1, at: 0 }; // Last step, and when it was first seen.
let listed = { activity: null, at: 0 }; // When the rounds were loaded last, and what the trainer did.

export function showTraining(params) {
  clearTimeout(timer);
  const number = params.get("round");
  $("training-overview").hidden = number !== null;
  $("training-round").hidden = number === null;
  if (number === null) showOverview();
  else showRound(number);
}

const isShown = () => view === "training" && !document.hidden && !$("training-overview").hidden;

async function showOverview() {
  clearTimeout(timer);
  const signal = fresh("training");
  if (rounds === undefined && !$("charts").childElementCount) say("training-status", "Loading…");
  const again = (error) => error.name !== "AbortError" && passes(error);
  try {
    const { log, now } = await call("GET", "/training", { signal });
    clearError("training-error");
    const isCurrent = await showRounds(now ?? null, signal);
    if (signal.aborted) return;
    drawOverview(log, now ?? null);
    if (!isCurrent) return;
  } catch (error) {
    if (error.name === "AbortError") return;
    say("training-status", "");
    showError("training-error", error, again(error) ? undefined : showOverview);
    if (!again(error)) return;
  }
  timer = setTimeout(() => { if (isShown()) showOverview(); }, POLL);
}

// Loads the rounds if the trainer does something else than before, or after a while. Returns whether polling continues.
async function showRounds(now, signal) {
  const activity = JSON.stringify([now?.doing, now?.round]);
  if (rounds !== undefined && listed.activity === activity && Date.now() - listed.at < ROUNDS_POLL) return true;
  try {
    await loadRounds(signal);
    drawRounds();
    listed = { activity, at: Date.now() };
    clearError("rounds-error");
  } catch (error) {
    showError("rounds-error", error, passes(error) ? undefined : showOverview);
    return passes(error);
  }
  return true;
}

function drawOverview(log, now) {
  const isConnected = Boolean(log || now || rounds);
  $("training-empty").hidden = isConnected || rounds === undefined;
  $("now-part").hidden = !now && !rounds;
  $("rounds-part").hidden = !isConnected && rounds !== undefined;
  $("curves-part").hidden = !isConnected;
  say("training-status", "");
  drawNow(now);
  drawCurves(log);
}

const pointsOf = (list) => (Array.isArray(list) ? list : []).filter((one) => isNumber(one?.[0]) && isNumber(one?.[1]));
const levelsOf = (list) => (Array.isArray(list) ? list : []).filter((one) => isNumber(one?.[0]) && Array.isArray(one[1]) && one[1].every(isNumber));

function drawCurves(log) {
  if (!log) {
    $("charts").replaceChildren();
    return sayOnce("curves-status", "No curves: no training run has begun.");
  }
  const step = Math.max(-1, ...CURVES.map(([name]) => pointsOf(log[name]).at(-1)?.[0] ?? -1), levelsOf(log.levels).at(-1)?.[0] ?? -1);
  if (step !== seen.step) seen = { step, at: Date.now() };
  if (step < 0) sayOnce("curves-status", "The training run has no values yet.");
  else if (Date.now() - seen.at > 60000) sayOnce("curves-status", `Step ${whole(step)}. No new step for over a minute.`);
  // Shown, but not announced by screen readers.
  else $("curves-status").replaceChildren(el("span", { "aria-live": "off" }, `Step ${whole(step)}. Updating live.`));
  // A supervised stage has no rewards, levels or KL.
  const curves = CURVES.map(([name, title]) => [title, pointsOf(log[name])]).filter(([, points]) => points.length);
  const levels = levelsOf(log.levels);
  $("charts").replaceChildren(...curves.map(([title, points]) => lineChart(title, points)), ...(levels.length ? [levelChart(levels)] : []));
}

export function startTraining() {
  onVersions(drawRounds);
}
