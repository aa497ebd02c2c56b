// Prices of the object store, which the user can change; kept in this browser.
import { useState } from "./html.js";

const KEY = "anabranch.prices";

/** The list prices of S3 Standard in us-east-1 in US dollars, as a start: calls are priced a thousand. */
export const DEFAULTS = { put: 0.005, list: 0.005, get: 0.0004, delete: 0, gb_month: 0.023 };
export const NAMES = {
  put: "1,000 PUT, POST, COPY",
  list: "1,000 LIST",
  get: "1,000 GET, HEAD",
  delete: "1,000 DELETE",
  gb_month: "1 GB stored for a month",
};
export const MONTH_S = 30 * 86_400;

/** Return the price class of a kind of call, by its name in the API. */
export function priceOf(call) {
  const name = call.toLowerCase();
  if (name.startsWith("list")) return "list";
  if (name.startsWith("get") || name.startsWith("head")) return "get";
  if (name.startsWith("delete") || name.startsWith("abort")) return "delete";
  return "put";
}

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    const valid = Object.entries(stored).filter(([name, price]) => name in DEFAULTS && Number.isFinite(price) && price >= 0);
    return { ...DEFAULTS, ...Object.fromEntries(valid) };
  } catch {
    return DEFAULTS; // what is stored is not ours
  }
}

/** Hook: [prices, change(name, price), reset]. */
export function usePrices() {
  const [prices, setPrices] = useState(load);
  const store = (changed) => {
    localStorage.setItem(KEY, JSON.stringify(changed));
    setPrices(changed);
  };
  const reset = () => {
    localStorage.removeItem(KEY);
    setPrices(DEFAULTS);
  };
  return [prices, (name, price) => store({ ...prices, [name]: price }), reset];
}
