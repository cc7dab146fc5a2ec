// Training: live curves.

import { lineChart, levelChart } from "./charts.js";
import { $, el } from "./elements.js";
import { view } from "./route.js";
import { call, clearError, fresh, passes, say, sayOnce, showError } from "./service.js";
import { isNumber, whole } from "./words.js";

const CURVES = [["reward", "Reward"], ["loss", "Loss"], ["kl", "KL"], ["entropy", "Entropy"], ["learning_rate", "Learning rate"]];
const POLL = 5000;
let trainingTimer = 0;
let seen = { step: -1, at: 0 }; // Last step, and when it was first seen.

export async function showTraining() {
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
