// Figures of all nodes: asked for while a page shows them, and kept for ten minutes, so that rates follow from them.
import { api } from "./api.js";
import { usePoll } from "./poll.js";

const INTERVAL_MS = 2_000;
const SAMPLES_MAX = 300;
/** Time without an answer after which the earlier ones are dropped: a curve over the gap would say something untrue. */
const GAP_MS = 20_000;

let samples = [];

function add(answer) {
  const at_ms = Date.now();
  const byNode = new Map(answer.nodes.map((figures) => [figures.node, figures]));
  const age_ms = samples.length > 0 ? at_ms - samples.at(-1).at_ms : 0;
  // A page asks when it opens: beside a sample that is younger than half an interval, rates would be those of an instant.
  const earlier = age_ms > GAP_MS ? [] : age_ms < INTERVAL_MS / 2 ? samples.slice(0, -1) : samples;
  samples = [...earlier.slice(1 - SAMPLES_MAX), { at_ms, byNode, unreachable: answer.unreachable }];
  return samples;
}

/** Hook: {samples, error, loading, refresh}. The samples so far, oldest first, are {at_ms, byNode, unreachable}. */
export function useFigures() {
  const poll = usePoll(async (signal) => add(await api.figures(signal)), INTERVAL_MS, []);
  return { ...poll, samples: poll.data ?? samples };
}

/** Return the growth of a node's counter in a second between two samples; null if the node did not answer both times. */
function growth(before, after, node, counter) {
  const [first, last] = [before.byNode.get(node), after.byNode.get(node)];
  const isSame = first && last && first.started_ms === last.started_ms && last.at_ms > first.at_ms;
  return isSame ? ((last[counter] - first[counter]) * 1000) / (last.at_ms - first.at_ms) : null;
}

/** Return the rates of a node's counter, for each sample but the first. */
export const rates = (all, node, counter) => all.slice(1).map((sample, index) => growth(all[index], sample, node, counter));

/** Return the newest rate of a node's counter, or null. */
export const rate = (all, node, counter) => (all.length > 1 ? growth(all.at(-2), all.at(-1), node, counter) : null);

/** Return the rates of all nodes together, for each sample but the first; null where none is known. */
export function totals(all, counter) {
  return all.slice(1).map((sample, index) => {
    const known = [...sample.byNode.keys()].map((node) => growth(all[index], sample, node, counter)).filter((each) => each !== null);
    return known.length > 0 ? known.reduce((sum, each) => sum + each, 0) : null;
  });
}
