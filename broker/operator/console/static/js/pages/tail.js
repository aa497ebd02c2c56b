// The live tail: a stream that is opened again when it ends, a pause that holds records back, and bounds on both.
import { api } from "../api.js";
import { useEffect, useRef, useState } from "../html.js";
import { useVisible } from "../poll.js";

const SHOWN_MAX = 300;
const HELD_MAX = 2_000;
const AGAIN_MS = 2_000;
/** Records are shown at most this often, however fast they arrive. */
const SHOW_MS = 250;

const EMPTY = { records: [], received: 0, held: 0, dropped: 0, isOpen: false, error: null };

/** Hook: the newest records, newest first, with counts; `togglePause` holds further ones back and shows them later. */
export function useTail(topic, request) {
  const [view, setView] = useState(EMPTY);
  const [isPaused, setPaused] = useState(false);
  const paused = useRef(false);
  const incoming = useRef([]);
  const visible = useVisible();
  paused.current = isPaused;

  useEffect(() => {
    if (!visible) return undefined;
    const controller = new AbortController();
    read(topic, request, controller.signal, incoming.current, setView);
    const timer = setInterval(() => show(incoming.current, paused.current, setView), SHOW_MS);
    return () => {
      controller.abort();
      clearInterval(timer);
    };
  }, [visible]);
  return { ...view, isPaused, togglePause: () => setPaused(!isPaused) };
}

/** Read records into `incoming` until the signal; open the stream again when it ends. */
async function read(topic, request, signal, incoming, setView) {
  while (!signal.aborted) {
    try {
      for await (const line of api.tail(topic, request, signal)) {
        setView((old) => (old.isOpen ? old : { ...old, isOpen: true, error: null }));
        if ("error" in line) throw new Error(line.error);
        if ("heartbeat_ms" in line) noteErrors(line.errors, setView);
        if ("offset" in line) incoming.push(line);
        if (incoming.length > HELD_MAX) {
          incoming.shift();
          setView((old) => ({ ...old, dropped: old.dropped + 1, received: old.received + 1 }));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status !== 0) setView((old) => ({ ...old, error })); // a node that does not answer is shown at the top
    }
    setView((old) => ({ ...old, isOpen: false }));
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

/** Show which partitions cannot be read now, as a heartbeat of the stream says. */
function noteErrors(errors, setView) {
  const text = errors.join("; ");
  setView((old) => ((old.error?.message ?? "") === text ? old : { ...old, error: text ? new Error(text) : null }));
}

/** Move what has arrived into the view, unless it is paused. */
function show(incoming, isPaused, setView) {
  if (isPaused) {
    setView((old) => (old.held === incoming.length ? old : { ...old, held: incoming.length }));
    return;
  }
  if (incoming.length === 0) return;
  const arrived = incoming.splice(0).reverse();
  setView((old) => {
    const records = [...arrived, ...old.records];
    return {
      ...old,
      records: records.slice(0, SHOWN_MAX),
      received: old.received + arrived.length,
      held: 0,
      dropped: old.dropped + Math.max(0, records.length - SHOWN_MAX),
    };
  });
}
