// How values are shown.

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${number(value, 3)} s`;
  const whole = Math.round(value);
  if (whole >= 7200) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

export function dollars(value) {
  if (value === null || value === undefined) return "–";
  return `$${Number(value.toPrecision(3))}`;
}

export function time(value) {
  return value ? new Date(value * 1000).toISOString().replace("T", " ").slice(0, 19) : "–";
}

export function cell(name, value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (name === "started_s") return time(value);
  if (name.endsWith("_s")) return seconds(value);
  if (name === "cost_usd") return dollars(value);
  return number(value);
}

export function count(value, what) {
  return `${value.toLocaleString("en-US")} ${what}${value === 1 ? "" : "s"}`;
}

/** A colour class for a reward: good, bad or between. */
export function rewardClass(value) {
  if (value === null || value === undefined) return "none";
  return value >= 1 ? "good" : value <= 0 ? "bad" : "between";
}
