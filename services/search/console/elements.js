// Elements of the page. Text from the service or the user is never inserted as markup.

export const $ = (id) => document.getElementById(id);

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "key") node.dataset.key = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
export const button = (text, onclick, props) => el("button", { type: "button", onclick, ...props }, text);
export const option = (value, text = value) => el("option", { value }, text);

export const head = (text, kind) => el("th", { scope: "col", class: kind }, text);
export const cell = (text, kind = "number") => el("td", { class: kind }, text);
export const row = (title, ...cells) => el("tr", {}, el("th", { scope: "row" }, title), cells);
export const table = (heads, rows, props) => el("table", props, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));

// Lengths are set through the CSSOM: the content policy forbids style attributes.
export function sized(node, styles) {
  for (const [name, share] of Object.entries(styles)) node.style[name] = `${(100 * share).toFixed(2)}%`;
  return node;
}

export const clamp = (value, lo = 0, hi = 1) => Math.min(hi, Math.max(lo, value));
export const bar = (share, kind = "") =>
  el("span", { class: `bar ${kind}`, "aria-hidden": "true" }, sized(el("i"), { width: clamp(share || 0) }));

// Replaces a node's content and restores the focus to the element with the same key.
export function redraw(node, children, fallback) {
  const held = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const open = new Set([...node.querySelectorAll("details[open][data-key]")].map((part) => part.dataset.key));
  node.replaceChildren(...[children].flat(3).filter(Boolean));
  for (const part of node.querySelectorAll("details[data-key]")) part.open ||= open.has(part.dataset.key);
  if (held === undefined) return;
  const again = [...node.querySelectorAll("[data-key]")].find((part) => part.dataset.key === held);
  (again ?? fallback)?.focus({ preventScroll: true });
}

export function setOptions(select, options, value) {
  select.replaceChildren(...options);
  // Keep a value from a link even if it is not an option, so that the link stays valid.
  if (![...select.options].some((one) => one.value === value)) select.append(option(value));
  select.value = value;
}

export function focusBox(id) {
  $(id).focus();
  $(id).select();
}
