// Queries of a round: those whose hits changed, with both hit lists, and those that got no clicks.

import { bar, button, el, sized } from "./elements.js";
import { linkTo } from "./route.js";
import { versions } from "./versions.js";
import { isNumber, plain, plural, signed, whole } from "./words.js";

const FEW = 10;
const FEW_UNCLICKED = 20;

// ---- Queries that changed ----

export function changedQueries(split, round) {
  const { changes } = split;
  const part = (...children) => el("section", { class: "changes", "aria-label": `Queries of ${split.split}` },
    el("h3", {}, changes ? `Query by query: ${changes.metric}` : "Query by query"), children);
  if (!changes) return part(el("p", { class: "note" }, "The hits of this split are not kept."));
  const list = el("div", { class: "change-list" });
  const filter = el("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "Part of a query or slice" });
  const draw = () => list.replaceChildren(...changeLists(changes.queries, filter.value.trim().toLowerCase(), round));
  filter.addEventListener("input", draw);
  draw();
  return part(changeBar(changes), changes.queries.length > 0 && el("label", { class: "filter" }, "Filter the queries", filter), list);
}

function changeBar({ better, worse, same }) {
  const shares = [["good", better, "better"], ["same", same, "same"], ["bad", worse, "worse"]];
  const total = better + same + worse || 1;
  return [
    el("div", { class: "stack", "aria-hidden": "true" },
      shares.map(([kind, count]) => count > 0 && sized(el("i", { class: kind }, whole(count)), { width: count / total }))),
    el("p", { class: "legend" }, shares.map(([kind, count, words]) => el("span", { class: kind }, `${plural(count, "query", "queries")} ${words}`))),
  ];
}

function changeLists(queries, typed, round) {
  const found = queries.filter((one) => !typed || `${one.query} ${one.slice ?? ""}`.toLowerCase().includes(typed));
  if (!found.length) return [el("p", { class: "status" }, typed ? `No listed query contains “${typed}”.` : "No query changed.")];
  const gain = (one) => one.candidate - one.served;
  const most = Math.max(...queries.map((one) => Math.abs(gain(one)))) || 1;
  const ordered = [...found].sort((a, b) => gain(b) - gain(a));
  const list = (title, those) => those.length > 0 && longList(title, those.map((one) => () => changeRow(one, gain(one) / most, round)), FEW, "changes");
  return [list("Largest gains", ordered.filter((one) => gain(one) > 0)),
    list("Largest losses", ordered.filter((one) => gain(one) < 0).reverse())].filter(Boolean);
}

// The first rows of a list, and a button for the others.
function longList(title, rows, few, kind) {
  const list = el("ol", { class: kind }, rows.slice(0, few).map((make) => make()));
  const more = rows.length > few && button(`Show ${whole(rows.length - few)} more`, () => {
    const others = rows.slice(few).map((make) => make());
    list.append(...others);
    more.remove();
    others[0].querySelector("summary, a")?.focus();
  });
  return el("section", {}, title && el("h4", {}, title), list, more);
}

function changeRow(one, share, round) {
  const gain = one.candidate - one.served;
  const value = (number) => (isNumber(number) ? number.toFixed(1) : "–");
  const way = gain > 0 ? "up" : "down";
  const details = el("details", {},
    el("summary", {},
      el("span", { class: "query" }, el("b", { dir: "auto" }, one.query), " ", one.slice && el("span", { class: "range" }, one.slice)),
      el("span", { class: "values" }, el("span", { class: "unseen" }, "served "), value(one.served), " → ",
        el("span", { class: "unseen" }, "candidate "), value(one.candidate)),
      el("span", { class: `delta ${way}` }, `${signed(gain, 1)} ${gain > 0 ? "▲" : "▼"}`),
      bar(Math.abs(share), way)));
  details.addEventListener("toggle", () => { if (details.childElementCount === 1) details.append(bothPages(one, round)); }, { once: true });
  return el("li", { "data-query": one.query }, details);
}

// ---- Both hit lists of a query ----

function bothPages(one, round) {
  const place = (hits, id) => hits.findIndex((hit) => hit.id === id);
  const left = one.served_hits.map((hit) => pageRow(hit, place(one.candidate_hits, hit.id) < 0 && "out"));
  const right = one.candidate_hits.map((hit, at) => pageRow(hit, moved(place(one.served_hits, hit.id), at)));
  const page = (name, hits) => el("section", { "aria-label": `Hits of the ${name.toLowerCase()} model` },
    el("h5", {}, name), hits.length ? el("ol", {}, hits) : el("p", { class: "note" }, "No hits."));
  return el("div", { class: "both" }, el("div", { class: "pages-of-query" }, page("Served", left), page("Candidate", right)),
    el("p", { class: "links" }, el("a", { href: linkTo("compare", comparison(one.query, round)) }, "Compare channels for this query"),
      el("a", { href: linkTo("search", { q: one.query }) }, "Search for it"),
      el("span", { class: "note" }, "L4 is the best level, – has no judgement.")));
}

function moved(before, now) {
  if (before < 0) return "new";
  if (before === now) return null;
  return before > now ? `▲ ${before - now}` : `▼ ${now - before}`;
}

function pageRow(hit, mark) {
  return el("li", {},
    el("span", { class: `level ${hit.level ? `level-${hit.level.slice(1)}` : ""}`, title: hit.level ? "" : "not judged" }, hit.level ?? "–"),
    el("span", { dir: "auto" }, plain(hit.title)),
    mark && el("span", { class: "mark" }, mark));
}

// The round's two versions if the service has loaded both, else the channels that the view chooses.
function comparison(query, { parent, version }) {
  const isLoaded = (name) => versions.some((one) => one.loaded && one.version === name);
  return isLoaded(parent) && isLoaded(version) ? { q: query, left: `${parent}/dense`, right: `${version}/dense` } : { q: query };
}

// ---- Queries without clicks ----

export function unclickedQueries(unclicked) {
  const part = (...children) => el("section", { class: "panel", "aria-labelledby": "unclicked-title" },
    el("h2", { id: "unclicked-title" }, "Queries without clicks"), children);
  if (!unclicked) {
    return part(el("p", { class: "note" }, "Needs judgements from the log: ", el("code", {}, "trainer.gate.source = \"log\""), "."));
  }
  if (!unclicked.length) return part(el("p", { class: "note" }, "Every query of the held-out days got a click."));
  const most = Math.max(...unclicked.map((one) => one.searches)) || 1;
  const rows = unclicked.map((one) => () => el("li", {}, el("a", { href: linkTo("search", { q: one.query }), dir: "auto" }, one.query),
    bar(one.searches / most), el("span", { class: "count" }, plural(one.searches, "search", "searches"))));
  return part(el("p", { class: "note" }, "Shoppers searched for these on the held-out days and chose nothing."),
    longList(null, rows, FEW_UNCLICKED, "unclicked"));
}
