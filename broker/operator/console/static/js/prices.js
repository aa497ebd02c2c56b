// Prices that the user has changed; kept in this browser, and sent with each question for the cost.
import { useState } from "./html.js";

const KEY = "anabranch.prices";
/** Largest price that the node takes. */
export const PRICE_MAX = 1e15;

/** What can be changed of the node's price list. */
export const NAMES = {
  zone_gb: "1 GB between zones",
  object_gb_month: "1 GB in objects for a month",
  object_writes_1000: "1,000 PUT, COPY, POST, LIST",
  object_reads_1000: "1,000 GET, HEAD",
  disk_gb_month: "1 GB of disk for a month",
};

function load() {
  try {
    const stored = Object.entries(JSON.parse(localStorage.getItem(KEY) ?? "{}"));
    return Object.fromEntries(stored.filter(([name, price]) => name in NAMES && price >= 0 && price <= PRICE_MAX));
  } catch {
    return {}; // what is stored is not ours
  }
}

/** Hook: [changed prices by name, change(name, price), reset]. */
export function usePrices() {
  const [changed, setChanged] = useState(load);
  const change = (name, price) => {
    const all = { ...changed, [name]: price };
    localStorage.setItem(KEY, JSON.stringify(all));
    setChanged(all);
  };
  const reset = () => {
    localStorage.removeItem(KEY);
    setChanged({});
  };
  return [changed, change, reset];
}

/** Return changed prices as the API takes them, in TOML. */
export const priceList = (changed) => Object.entries(changed).map((price) => price.join(" = ")).join("\n");
