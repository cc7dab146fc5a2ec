// The trainer's current activity: its place in the loop, its alarms, and how far each stage is from its next run.

import { $, bar, cell, el, head, redraw, row, table } from "./elements.js";
import { linkTo } from "./route.js";
import { duration, isNumber, plain, whole } from "./words.js";

const LOOP = [["starting", "Starting"], ["waiting", "Waiting"], ["training", "Training"], ["measuring", "Measuring"],
  ["publishing", "Publishing"], ["offering", "Offering"]];

const DOING = {
  opening: "Starting.",
  reading: "Reading the log before the first round.",
  waiting: "Waiting until a stage is due.",
  training: "Training",
  measuring: "Measuring the candidate",
  publishing: "Publishing the candidate",
  offering: "Waiting until the search service serves the candidate",
};

const ALARMS = {
  source: "No messages arrive from the log.",
  log: "The log cannot be read.",
  disk: "The disk is nearly full: training is paused.",
  step: "Training makes no steps.",
  stage: "The last round failed in training.",
  round: "A round has an error and is tried again.",
  drift: "The new examples differ from earlier ones.",
  judge: "The judge's levels differ from those of the round before.",
  offer: "A candidate passed the gate and is not served yet.",
};

export function drawNow(now) {
  redraw($("now"), now ? [loopSteps(now.doing), sentence(now), alarmList(now.alarms ?? []), stageTable(now.stages ?? [])]
    : el("p", { class: "status" }, "The trainer does not say what it does."), $("rounds-status"));
}

function loopSteps(doing) {
  const current = doing === "opening" || doing === "reading" ? "starting" : doing;
  return el("ol", { class: "steps", "aria-label": "The training loop" }, LOOP
    .filter(([name]) => name !== "starting" || current === "starting")
    .map(([name, words]) => el("li", { "aria-current": name === current && "step" }, words)));
}

function sentence({ doing, round, stage, step, steps }) {
  const words = DOING[doing] ?? plain(doing);
  if (words.endsWith(".")) return el("p", {}, words);
  const link = isNumber(round) && el("a", { href: linkTo("training", { round }), key: "round" }, `round ${whole(round)}`);
  const isTraining = doing === "training";
  const parts = [words, isTraining && stage && ` stage ${stage}`, link && " of ", link,
    isTraining && steps > 0 && `: step ${whole(step)} of ${whole(steps)}`, "."];
  return el("div", {}, el("p", {}, ...parts),
    isTraining && steps > 0 && el("progress", { max: steps, value: Math.min(step, steps), "aria-label": "Steps of this stage" }));
}

function alarmList(alarms) {
  if (!alarms.length) return el("p", { class: "note" }, "No alarms.");
  return el("ul", { class: "alarms", "aria-label": "Alarms" }, alarms.map((name) =>
    el("li", {}, el("b", {}, `Alarm ${name}`), ALARMS[name] ?? "See the trainer's log.")));
}

function stageTable(stages) {
  if (!stages.length) return null;
  const progress = (done, of, words) => cell(of > 0
    ? el("div", { class: "part" }, el("span", {}, `${words(done)} of ${words(of)}`), bar(done / of)) : "–", null);
  const rows = stages.map(({ stage, fresh, examples, since, seconds }) =>
    row(stage, progress(fresh, examples, whole), progress(since, seconds, duration)));
  return [table([head("Next run of stage"), head("New examples"), head("Time since its last run")], rows, { class: "stages" }),
    el("p", { class: "note" }, "A stage runs when it has enough new examples, or some of them after enough time.")];
}
