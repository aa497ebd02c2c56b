// The difference between two texts, line by line.
import { html } from "../html.js";
import { count } from "../format.js";

/** Pairs of lines that are compared; texts with more are shown as a whole, once as removed and once as added. */
const PAIRS_MAX = 4_000_000;

/** Return the lines of two texts as [mark, line]: "-" is in the first only, "+" in the second only, " " in both. */
export function differenceOf(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const same = (lines) => lines.map((line) => [" ", line]);
  return [
    ...same(a.slice(0, start)),
    ...middleOf(a.slice(start, a.length - end), b.slice(start, b.length - end)),
    ...same(a.slice(a.length - end)),
  ];
}

/** Return the difference of lines by their longest common subsequence. */
function middleOf(a, b) {
  const all = [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  if (a.length * b.length > PAIRS_MAX) return all;
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width); // lengths for what is left of both
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const at = i * width + j;
      common[at] = a[i] === b[j] ? common[at + width + 1] + 1 : Math.max(common[at + width], common[at + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    const at = i * width + j;
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push([" ", a[i]]);
      i += 1;
      j += 1;
    } else if (j === b.length || (i < a.length && common[at + width] >= common[at + 1])) found.push(["-", a[i++]]);
    else found.push(["+", b[j++]]);
  }
  return found;
}

/** The difference between two texts. */
export function Difference({ label, before, after }) {
  const lines = differenceOf(before, after);
  const added = lines.filter(([mark]) => mark === "+").length;
  const removed = lines.filter(([mark]) => mark === "-").length;
  const line = ([mark, text]) => {
    if (mark === "+") return html`<ins>+ ${text}${"\n"}</ins>`;
    return mark === "-" ? html`<del>- ${text}${"\n"}</del>` : `  ${text}\n`;
  };
  return html`
    <div class="payload">
      <h2>${label} <small>${count(added, "line")} added, ${count(removed, "line")} removed</small></h2>
      <pre class="difference" tabindex="0" aria-label=${label}>${lines.map(line)}</pre>
    </div>
  `;
}
