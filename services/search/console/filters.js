// Filter: a list of conditions, {field, in} or {field, gte, lte}.

import { isNumber, plain } from "./words.js";
import { readJson } from "./service.js";

const isValue = (value) => ["string", "number", "boolean"].includes(typeof value);

// A link can contain anything: drop what is not a condition.
export function readFilter(text) {
  const given = readJson(text);
  let filter = [];
  for (const one of Array.isArray(given) ? given : []) {
    if (typeof one?.field !== "string") continue;
    for (const value of [one.eq, ...(Array.isArray(one.in) ? one.in : [])]) {
      if (isValue(value)) filter = withValue(filter, one.field, value, true);
    }
    if (isNumber(one.gte) || isNumber(one.lte)) filter = withRange(filter, one.field, one.gte, one.lte);
  }
  return filter;
}

export const valuesOf = (filter, field) => filter.find((one) => one.field === field && one.in)?.in ?? [];
export const rangeOf = (filter, field) => filter.find((one) => one.field === field && !one.in) ?? {};

export function withValue(filter, field, value, on) {
  const values = valuesOf(filter, field).filter((one) => one !== value);
  if (on) values.push(value);
  const others = filter.filter((one) => one.field !== field || !one.in);
  return values.length ? [...others, { field, in: values }] : others;
}

export function withRange(filter, field, gte, lte) {
  const range = { field };
  if (isNumber(gte)) range.gte = gte;
  if (isNumber(lte)) range.lte = lte;
  const others = filter.filter((one) => one.field !== field || one.in);
  return Object.keys(range).length > 1 ? [...others, range] : others;
}

export const conditions = (filter) => filter.map((one) => (one.in?.length === 1 ? { field: one.field, eq: one.in[0] } : one));

export function rangeWords({ gte, lte }) {
  if (gte === undefined) return `up to ${plain(lte)}`;
  return lte === undefined ? `from ${plain(gte)}` : `${plain(gte)} to ${plain(lte)}`;
}
