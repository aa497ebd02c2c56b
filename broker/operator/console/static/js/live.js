// The live stream of the node: one sample a second, shared by the pages and kept for ten minutes.
import { api } from "./api.js";
import { useEffect, useState } from "./html.js";

const SAMPLES_MAX = 600;
/** Pause before the next attempt when the stream ended or was refused. */
const AGAIN_MS = 3_000;
/** Time without a sample after which the earlier ones are dropped: a curve over the gap would say something untrue. */
const GAP_MS = 10_000;

let samples = [];
let problem = "";
let controller = null;
const watchers = new Set();

const tell = () => watchers.forEach((watcher) => watcher({ samples, problem }));

function add(sample) {
  const last = samples.at(-1);
  // A node that has started again counts from zero.
  const isNewStart = last && (sample.bytes_in < last.bytes_in || sample.at_ms - last.at_ms > GAP_MS);
  samples = isNewStart ? [sample] : [...samples.slice(1 - SAMPLES_MAX), sample];
  problem = "";
  tell();
}

/** Read samples until nobody watches any more. */
async function watch(signal) {
  while (!signal.aborted) {
    try {
      for await (const sample of api.live(signal)) if ("at_ms" in sample) add(sample);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status !== 0) problem = error.message; // a node that does not answer is shown at the top of the page
      tell();
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

function startOrStop() {
  const isWanted = watchers.size > 0 && !document.hidden;
  if (isWanted && controller === null) {
    controller = new AbortController();
    watch(controller.signal);
  } else if (!isWanted && controller !== null) {
    controller.abort();
    controller = null;
  }
}

document.addEventListener("visibilitychange", startOrStop);

/** Hook: the samples so far, oldest first, and why there are no further ones (an empty text if there are). */
export function useLive() {
  const [state, setState] = useState({ samples, problem });
  useEffect(() => {
    watchers.add(setState);
    startOrStop();
    return () => {
      watchers.delete(setState);
      startOrStop();
    };
  }, []);
  return state;
}

/** Return the growth a second of a total, for each sample but the first. */
export function differences(all, total) {
  return all.slice(1).map((sample, index) => {
    const seconds = (sample.at_ms - all[index].at_ms) / 1000;
    return seconds > 0 ? Math.max(0, (total(sample) - total(all[index])) / seconds) : 0;
  });
}
