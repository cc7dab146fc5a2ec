// The map's plot: one link per item. The pointer picks the nearest point; the arrow keys move between points.

import { $, clamp, el, svg } from "./elements.js";
import { linkTo } from "./route.js";
import { plain } from "./words.js";

const MARGIN = 10;
const REACH = 16; // Pixels within which the pointer picks a point.
let dots = []; // Each with its point, group, node and place in pixels.
let active = null; // Dot whose title is shown.
let pressed = null; // The active dot when the pointer went down.
let size = { width: 0, height: 0 };

const isActive = (dot) => dot.isShown && dot.isFound;

export function drawPlot(groups) {
  // Large groups first, so that they do not cover the small ones.
  dots = [...groups].sort((a, b) => (a.kind === "m0" ? -1 : b.kind === "m0" ? 1 : b.points.length - a.points.length))
    .flatMap((group) => group.points.map((point) => newDot(point, group)));
  active = null;
  $("map-svg").replaceChildren(...dots.map((dot) => dot.node));
  $("map-tip").hidden = true;
  size = { width: 0, height: 0 };
  resizePlot();
}

function newDot(point, group) {
  const dot = { point, group, isShown: true, isFound: true, x: 0, y: 0 };
  const title = plain(point.title);
  dot.shape = svg("path", { class: group.kind, d: group.shape });
  dot.node = svg("a", {
    href: linkTo("search", { q: title }), tabindex: "-1", "aria-label": point.group === null ? title : `${title}, ${point.group}`,
    "data-item": point.id, onfocus: () => choose(dot), onblur: () => choose(null),
  }, dot.shape);
  return dot;
}

export function resizePlot() {
  const { clientWidth: width, clientHeight: height } = $("map-plot");
  if (!width || (width === size.width && height === size.height)) return;
  size = { width, height };
  $("map-svg").setAttribute("viewBox", `0 0 ${width} ${height}`);
  const scale = clamp(width / 620, 0.75, 1.15);
  for (const dot of dots) {
    dot.x = MARGIN + clamp(dot.point.x) * (width - 2 * MARGIN);
    dot.y = MARGIN + clamp(dot.point.y) * (height - 2 * MARGIN);
    dot.shape.setAttribute("transform", `translate(${dot.x.toFixed(1)} ${dot.y.toFixed(1)}) scale(${scale.toFixed(2)})`);
  }
  choose(null);
}

// Hides the groups that are not shown, and fades the points that are not found.
export function showGroups(isShown, isFound) {
  for (const dot of dots) {
    dot.isShown = isShown(dot.group);
    dot.isFound = isFound(dot.point);
    dot.node.toggleAttribute("hidden", !dot.isShown);
    dot.node.classList.toggle("faded", !dot.isFound);
  }
  choose(null);
  const first = dots.filter(isActive).sort((a, b) => a.x + a.y - b.x - b.y)[0];
  setTabStop(first);
}

// One point is a tab stop.
function setTabStop(dot) {
  for (const one of dots) if (one.node.getAttribute("tabindex") === "0") one.node.setAttribute("tabindex", "-1");
  dot?.node.setAttribute("tabindex", "0");
}

function choose(dot) {
  active?.node.classList.remove("active");
  active = dot;
  const tip = $("map-tip");
  tip.hidden = !dot;
  if (!dot) return;
  dot.node.classList.add("active");
  if (dot.node === document.activeElement) setTabStop(dot);
  const { title, group } = dot.point;
  tip.replaceChildren(el("b", { dir: "auto" }, plain(title)), el("span", { dir: "auto" }, group ?? ""));
  place(tip, dot);
}

// Beside the point, on the side with more space.
function place(tip, { x, y }) {
  const { width, height } = size;
  Object.assign(tip.style, { left: "auto", right: "auto", top: "auto", bottom: "auto" });
  const across = clamp(x - tip.offsetWidth / 2, 4, Math.max(4, width - tip.offsetWidth - 4));
  tip.style.left = `${across}px`;
  if (y > height / 2) tip.style.bottom = `${height - y + 12}px`;
  else tip.style.top = `${y + 12}px`;
}

function nearest(event) {
  const box = $("map-plot").getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const gap = (dot) => Math.hypot(dot.x - x, dot.y - y);
  let best = null;
  for (const dot of dots) if (isActive(dot) && gap(dot) < (best ? gap(best) : REACH)) best = dot;
  return best;
}

function onMove(event) {
  if (event.pointerType === "touch") return;
  const dot = nearest(event);
  if (dot !== active) choose(dot);
  $("map-plot").classList.toggle("pointed", dot !== null);
}

function onLeave(event) {
  if (event.pointerType !== "touch" && active?.node !== document.activeElement) choose(null);
}

// A finger has no hover: the first tap shows the title, the second one opens the search.
function onClick(event) {
  if (event.detail === 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const dot = nearest(event);
  event.preventDefault();
  const isFirstTap = event.pointerType === "touch" && dot !== pressed;
  if (!dot || isFirstTap) return choose(dot);
  location.hash = linkTo("search", { q: plain(dot.point.title) });
}

const WAYS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

function onKey(event) {
  const from = dots.find((dot) => dot.node === document.activeElement);
  if (event.key === "Escape") return choose(null);
  const way = WAYS[event.key];
  if (!from || !way) return;
  event.preventDefault();
  let best = null;
  for (const dot of dots) {
    const [right, down] = [dot.x - from.x, dot.y - from.y];
    const ahead = right * way[0] + down * way[1];
    const aside = Math.abs(right * way[1]) + Math.abs(down * way[0]);
    if (dot === from || !isActive(dot) || ahead <= 0.5 || aside > 2 * ahead) continue;
    const cost = ahead + 2 * aside;
    if (!best || cost < best.cost) best = { dot, cost };
  }
  best?.dot.node.focus({ preventScroll: true });
}

export function startPlot() {
  const plot = $("map-plot");
  plot.addEventListener("pointermove", onMove);
  plot.addEventListener("pointerdown", () => { pressed = active; });
  plot.addEventListener("pointerleave", onLeave);
  plot.addEventListener("click", onClick);
  plot.addEventListener("keydown", onKey);
}
