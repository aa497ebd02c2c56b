// A search: page after page of a topic in one direction, until enough records are found, all is read, or it is stopped.
import { api } from "../api.js";
import { useEffect, useRef, useState } from "../html.js";
import { recordKey } from "./record_list.js";

/** Records that a page shows at most, whatever is asked for. */
export const SHOWN_MAX = 2_000;

const NOTHING = {
  records: [],
  next: null,
  end: false,
  scanned: 0,
  remaining: 0,
  read_bytes: 0,
  errors: [],
  unreachable: [],
  more_partitions: false,
  error: null,
  isBusy: true,
  isStopped: false,
};

/** Return `next` of an answer as the parameter `from` of the following request. */
const cursorText = (next) => `offsets:${Object.entries(next).map(([partition, offset]) => `${partition}=${offset}`).join(",")}`;

/** Return the state with an answer added. */
function added(state, answer) {
  const known = new Set(state.records.map(recordKey));
  return {
    ...state,
    ...answer,
    records: [...state.records, ...answer.records.filter((record) => !known.has(recordKey(record)))],
    scanned: state.scanned + answer.scanned,
    read_bytes: state.read_bytes + answer.read_bytes,
    errors: [...new Set([...state.errors, ...answer.errors])],
  };
}

/**
 * Hook: the records that a request finds. `isPatient`: go on over pages without a match until there are as many as the
 * request's limit. `more` continues behind what was looked at, and `stop` ends that.
 */
export function useSearch(topic, request, isPatient) {
  const [state, setState] = useState(NOTHING);
  const running = useRef(null);

  const run = async (begun) => {
    const controller = new AbortController();
    running.current?.abort();
    running.current = controller;
    const { signal } = controller;
    let now = { ...begun, error: null, isBusy: true, isStopped: false };
    const wanted = now.records.length + Number(request.limit);
    // What was found before stays until there is an answer.
    setState((old) => (begun === NOTHING && old.next !== null ? { ...old, error: null, isBusy: true } : now));
    try {
      for (let goesOn = true; goesOn; ) {
        const from = now.next === null ? request.from : cursorText(now.next);
        const limit = Math.max(1, wanted - now.records.length);
        const answer = await api.records(topic, { ...request, from, limit }, signal);
        const isStuck = now.next !== null && cursorText(now.next) === cursorText(answer.next);
        now = added(now, answer);
        goesOn = isPatient && !answer.end && !isStuck && now.records.length < wanted;
        if (!signal.aborted) setState({ ...now, isBusy: goesOn });
      }
    } catch (error) {
      if (!signal.aborted) setState({ ...now, error, isBusy: false });
    }
  };
  const stop = () => {
    running.current?.abort();
    setState((old) => ({ ...old, isBusy: false, isStopped: true }));
  };
  useEffect(() => {
    const restart = () => run(NOTHING);
    restart();
    document.addEventListener("console:refresh", restart);
    return () => {
      document.removeEventListener("console:refresh", restart);
      running.current?.abort();
    };
  }, []);
  return { ...state, more: () => run(state), stop };
}
