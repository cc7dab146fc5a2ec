// Numbers and times as words.

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const whole = (value) => (isNumber(value) ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : "–");
export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;
export const score = (value) => (isNumber(value) ? value.toPrecision(4) : "–");
export const percent = (value) => (isNumber(value) ? `${value.toFixed(1)} %` : "–");

export function signed(value, digits) {
  const size = Math.abs(value).toFixed(digits);
  return Number(size) === 0 ? `±${size}` : `${value > 0 ? "+" : "−"}${size}`;
}

export const isRange = (range) => Array.isArray(range) && range.length === 2 && range.every(isNumber);

export function short(value) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001 || size >= 1e6) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

export function plain(value) {
  if (value === null || value === undefined) return "–";
  if (isNumber(value)) return Number.isInteger(value) ? String(value) : short(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function moment(ms) {
  if (!isNumber(ms)) return "–";
  return new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export const rangeText = (range, digits = 1) => (isRange(range) ? `${range[0].toFixed(digits)} to ${range[1].toFixed(digits)}` : "");

export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  const [size, unit] = seconds >= 172800 ? [86400, "d"] : seconds >= 3600 ? [3600, "h"] : seconds >= 60 ? [60, "min"] : [1, "s"];
  const count = seconds / size;
  return `${count < 10 && size >= 3600 ? Number(count.toFixed(1)) : Math.round(count)} ${unit}`;
}
