// Compare: two blind pages of hits, grades, and a vote.

import { ask } from "./dialogs.js";
import { $, button, clamp, el, focusBox, option, redraw, setOptions } from "./elements.js";
import { allFields, facts } from "./hits.js";
import { go, readHash, route } from "./route.js";
import { call, clearError, fresh, say, showError } from "./service.js";
import { onVersions, versions } from "./versions.js";
import { SIDES, loadSummary } from "./votes.js";
import { plain, plural } from "./words.js";

const CHANNELS = ["dense", "lexical", "hybrid"];
const PAGE = 10;
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

function drawChannelChoice() {
  const { params } = readHash();
  for (const side of SIDES) setOptions($(`compare-${side}`), channelOptions(), $(`compare-${side}`).value || comparing(params)[side]);
}

function submitCompare(event) {
  event.preventDefault();
  const params = new URLSearchParams();
  if ($("compare-query").value.trim()) params.set("q", $("compare-query").value.trim());
  for (const side of SIDES) params.set(side, $(`compare-${side}`).value);
  go("compare", params);
}

export async function showCompare(params, changed) {
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

export function compareKey(event) {
  if (!pair) return;
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

export function startCompare() {
  $("compare-form").addEventListener("submit", submitCompare);
  $("voter-button").addEventListener("click", askVoter);
  for (const one of $("vote").querySelectorAll("[data-verdict]")) one.addEventListener("click", () => vote(one.dataset.verdict));
  $("vote-next").addEventListener("click", () => focusBox("compare-query"));
  onVersions(drawChannelChoice);
}
