// Numbers, sizes and times as text, in one way everywhere.

const NUMBERS = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
/** The last time that JavaScript can write as a date. */
const TIME_MAX_MS = 8.64e15;

/** `12 %`; a dash for what is not known. */
export const percent = (share) => (share === null || share === undefined ? "–" : `${share < 0.1 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`);

/** `1.4 MiB/s`. */
export const bytesPerSecond = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

/** `12/s`, `0.3/s`. */
export const perSecond = (value) =>
  value === null || value === undefined ? "–" : `${number(value > 0 && value < 10 ? Number(value.toFixed(1)) : Math.round(value))}/s`;

/** `12,345`; a dash for what is not known. */
export function number(value) {
  return value === null || value === undefined ? "–" : NUMBERS.format(value);
}

/** `node 2 (follows), node 3 (12 behind), node 4`: replicas besides the leader; a dash for none. */
export const replicaText = (replicas) =>
  replicas.map(({ node, lag }) => `node ${node}${lag === null ? "" : lag > 0 ? ` (${number(lag)} behind)` : " (follows)"}`).join(", ") || "–";

/** `1.4 MiB`, `1 GiB`, `640 B`; a dash for what is not known. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  let size = value;
  while (Math.round(Math.abs(size)) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1).replace(".0", "")} ${UNITS[unit]}`;
}

/** `10MiB`, `1500`: bytes as they are entered, and not rounded. */
export function exactBytes(value) {
  let unit = 0;
  let size = value;
  while (size >= 1024 && size % 1024 === 0 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return unit === 0 ? String(size) : `${size}${UNITS[unit]}`;
}

/** Return the bytes that `10MiB`, `10 M` or `1500` stand for, in binary units. Throws Error. */
export function parseBytes(text) {
  const [, digits, unit = ""] = /^\s*(\d{1,15})\s*(?:([KMGTP])(?:iB)?|B)?\s*$/i.exec(text) ?? [];
  if (digits === undefined) throw new Error(`“${text}”: expected bytes, or a whole number with a unit (KiB, MiB, GiB) as in 10MiB`);
  return Number(digits) * 1024 ** ["", "K", "M", "G", "T", "P"].indexOf(unit.toUpperCase());
}

/** `3 d 4 h`, `12 min`, `9 s`, `20 ms`: the two largest units that matter. */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (milliseconds < 1_000) return `${Math.round(milliseconds)} ms`;
  const seconds = Math.floor(milliseconds / 1000);
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3_600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}

/** `9 s ago`, seen from a clock in ms. */
export function ago(at_ms, now_ms = Date.now()) {
  return at_ms === null || at_ms === undefined ? "–" : `${duration(Math.max(0, now_ms - at_ms))} ago`;
}

/** `2026-03-04T12:30:01.250Z`, in UTC, as commands show it; a dash for no timestamp (-1). */
export function time(at_ms) {
  if (at_ms === null || at_ms === undefined || at_ms < 0) return "–";
  return at_ms > TIME_MAX_MS ? `${at_ms} ms` : new Date(at_ms).toISOString();
}

/** `12:30:01Z`. */
export const clock = (at_ms) => `${time(at_ms).slice(11, 19)}Z`;

/** Return the time of a `datetime-local` field, which is in UTC on all pages, in ms. */
export const timeOfField = (text) => new Date(`${text}Z`).getTime();

/** The same time in the browser's time zone, with the zone's name. */
export const localTime = (at_ms) => new Date(at_ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "long" });

/** `1 topic`, `3 topics`; `several` is the plural of a word that takes no s. */
export function count(value, word, several = `${word}s`) {
  return `${number(value)} ${value === 1 ? word : several}`;
}
