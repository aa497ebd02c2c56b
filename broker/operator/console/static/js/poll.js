// Loading and reloading of what a page shows. Nothing is asked while the tab is hidden.
import { useEffect, useRef, useState } from "./html.js";
import { useStore } from "./store.js";

/** Hook: whether the tab is visible. */
export function useVisible() {
  const [visible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const listener = () => setVisible(!document.hidden);
    document.addEventListener("visibilitychange", listener);
    return () => document.removeEventListener("visibilitychange", listener);
  }, []);
  return visible;
}

/**
 * Hook: load once, and again `interval_ms` after each answer while the tab is visible (0: only when asked).
 *
 * `load(signal)` returns a promise. Whatever it depends on is in `dependencies`; a change forgets the data. Returns
 * {data, error, loading, refresh}: the last data is kept while a later request fails. `refresh` loads at once, as does
 * a node that answers again.
 */
export function usePoll(load, interval_ms, dependencies) {
  const [result, setResult] = useState({ data: null, error: null, loading: true, key: "" });
  const [asked, setAsked] = useState(0);
  const visible = useVisible();
  const recoveries = useStore((state) => state.recoveries);
  const key = JSON.stringify(dependencies);
  const newest = useRef(load);
  newest.current = load;

  useEffect(() => {
    if (!visible) return undefined;
    const controller = new AbortController();
    let timer;
    const run = async () => {
      setResult((old) => (old.key === key ? { ...old, loading: true } : { data: null, error: null, loading: true, key }));
      try {
        const data = await newest.current(controller.signal);
        setResult({ data, error: null, loading: false, key });
      } catch (error) {
        if (controller.signal.aborted) return;
        setResult((old) => ({ ...old, error, loading: false, key }));
      }
      if (interval_ms && !controller.signal.aborted) timer = setTimeout(run, interval_ms);
    };
    run();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [visible, recoveries, asked, key, interval_ms]);

  const refresh = () => setAsked((count) => count + 1);
  useEffect(() => {
    document.addEventListener("console:refresh", refresh);
    return () => document.removeEventListener("console:refresh", refresh);
  }, []);
  const isCurrent = result.key === key;
  return { data: isCurrent ? result.data : null, error: isCurrent ? result.error : null, loading: result.loading, refresh };
}

/** Hook: the last two different answers of a poll, older first: [{at_ms, data}, ...]. */
export function useLastTwo(data) {
  const kept = useRef([]);
  if (data !== null && kept.current.at(-1)?.data !== data) kept.current = [...kept.current.slice(-1), { at_ms: Date.now(), data }];
  return kept.current;
}

/** Return the growth in a second of a total between two answers; null if it is not known, or has shrunk. */
export function growthOf(answers, total) {
  if (answers.length < 2) return null;
  const [before, now] = answers.map(({ data }) => total(data));
  const seconds = (answers[1].at_ms - answers[0].at_ms) / 1000;
  return before === null || now === null || now < before || seconds <= 0 ? null : (now - before) / seconds;
}
