// Votes so far: one summary for each pair of channels.

import { $, cell, clamp, el, head, row, sized, table } from "./elements.js";
import { call, fresh, say } from "./service.js";
import { isNumber, isRange, percent, plural, rangeText, signed, whole } from "./words.js";

export const SIDES = ["left", "right"];

export async function loadSummary() {
  const signal = fresh("summary");
  try {
    const { pairs } = await call("GET", "/votes/summary", { signal });
    say("summary-status", pairs.length ? "" : "No votes yet.");
    $("summary").replaceChildren(...pairs.map(pairSummary));
  } catch (error) {
    if (error.name === "AbortError") return;
    say("summary-status", `Cannot load the votes: ${error.message}`);
    $("summary").replaceChildren();
  }
}

const rateCell = (rate, range) => el("td", {}, percent(rate), " ", el("span", { class: "range" }, rangeText(range)));

function pairSummary(one) {
  const total = one.num_good + one.num_same + one.num_bad;
  const shares = [["good", one.num_good, `${one.left} better`], ["same", one.num_same, "Same"], ["bad", one.num_bad, `${one.right} better`]];
  const words = shares.map(([, count, name]) => `${name} ${whole(count)}`);
  return el("article", { class: "votes" },
    el("h3", {}, `${one.left} against ${one.right}`),
    el("div", { class: "stack", role: "img", "aria-label": `${plural(total, "vote")}: ${words.join(", ")}` },
      shares.map(([kind, count]) => count > 0 && sized(el("i", { class: kind }, whole(count)), { width: count / total }))),
    el("p", { class: "legend" }, shares.map(([kind, count, name]) => el("span", { class: kind }, `${name}: ${whole(count)}`))),
    el("div", { class: "gsb" },
      el("span", {}, "GSB ", el("b", {}, isNumber(one.gsb) ? signed(one.gsb, 1) : "–"), " ",
        el("span", { class: "range" }, isRange(one.gsb_interval) ? one.gsb_interval.map((end) => signed(end, 1)).join(" to ") : "")),
      whisker(one.gsb, one.gsb_interval)),
    table([head("Channel"), head("Query goodrate"), head("Item goodrate"), head("Graded items", "number wide")],
      SIDES.map((side) => row(one[side], rateCell(one[`${side}_goodrate`], one[`${side}_goodrate_interval`]),
        rateCell(one[`${side}_item_goodrate`], one[`${side}_item_goodrate_interval`]), cell(whole(one[`${side}_items`]), "number wide")))));
}

// Scale from −100 (the right channel always wins) to 100 (the left one always wins).
function whisker(value, range) {
  const place = (points) => clamp((points + 100) / 200);
  return el("span", { class: "whisker", "aria-hidden": "true" },
    isRange(range) && sized(el("i"), { left: place(range[0]), width: place(range[1]) - place(range[0]) }),
    isNumber(value) && sized(el("b"), { left: place(value) }));
}
