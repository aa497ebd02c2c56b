// Keyboard shortcuts. They are single keys, so they are ignored while the focus is in a field or a dialog is open.
import { go } from "./router.js";
import { nextTheme } from "./theme.js";

const PREFIX_MS = 1_500;

/** Pages by the key that follows `g`. */
const PAGES = {
  c: [],
  t: ["topics"],
  m: ["schemas"],
  i: ["tables"],
  g: ["groups"],
  x: ["transactions"],
  s: ["storage"],
  b: ["balance"],
  o: ["cost"],
  u: ["security"],
  q: ["quotas"],
  a: ["audit"],
};

/** What the help shows: keys and what they do. */
export const SHORTCUTS = [
  ["?", "Show this help"],
  ["/", "Go to the search field or the first filter"],
  ["r", "Load the page's data again"],
  ["p", "Pause or continue the live tail"],
  ["n", "Create what the page lists, or produce a record (records page)"],
  ["Ctrl Enter", "Produce the record, or go on in another dialog"],
  ["d", "Change between the system's, light and dark colours"],
  ["g c", "Go to the cluster"],
  ["g t", "Go to topics"],
  ["g m", "Go to schemas"],
  ["g i", "Go to tables (Iceberg)"],
  ["g g", "Go to groups"],
  ["g x", "Go to transactions"],
  ["g s", "Go to storage"],
  ["g b", "Go to balance"],
  ["g o", "Go to the cost of the cluster"],
  ["g u", "Go to users, ACLs and delegation tokens"],
  ["g q", "Go to quotas"],
  ["g a", "Go to the audit log"],
];

/** Click the first element that a key stands for, if the page has one: `data-key="n"`. */
function press(key) {
  const target = document.querySelector(`[data-key="${key}"]:not(:disabled)`);
  if (target?.matches("input, select")) target.focus();
  else target?.click();
  return target !== null;
}

/** Listen to the keyboard. `showHelp` opens the help. */
export function startKeys(showHelp) {
  let prefixAt = 0;
  addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const afterPrefix = Date.now() - prefixAt < PREFIX_MS;
    prefixAt = 0;
    if (afterPrefix && event.key in PAGES) go(PAGES[event.key]);
    else if (event.key === "g") prefixAt = Date.now();
    else if (event.key === "?") showHelp();
    else if (event.key === "d") nextTheme();
    else if (event.key === "r") document.dispatchEvent(new CustomEvent("console:refresh"));
    else if (!["/", "p", "n"].includes(event.key) || !press(event.key)) return;
    event.preventDefault();
  });
}
