// The state that pages share. Each page keeps what only it shows in its own component.
import { useEffect, useState } from "./html.js";

const listeners = new Set();

let state = {
  /** Answer of GET /session; null until it has arrived. */
  session: null,
  /** True while the node asks for a token. */
  needsToken: false,
  /** Newest answer of GET /cluster; kept while the node does not answer. */
  cluster: null,
  /** Since when the node does not answer, in ms since the epoch; null while it does. */
  unreachableSince: null,
  /** Number of times that the node has answered again; a change makes all pages load at once. */
  recoveries: 0,
  /** Short messages about actions: {id, text, kind}. */
  notices: [],
};

export const getState = () => state;

/** Replace some fields, and tell those who read them. */
export function update(changes) {
  state = { ...state, ...changes };
  for (const listener of [...listeners]) listener(state);
}

/** Hook: the selected part of the state. `select` must return a stored value, not a new object. */
export function useStore(select) {
  const [value, setValue] = useState(() => select(state));
  useEffect(() => {
    const listener = (now) => setValue(() => select(now));
    listener(state);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return value;
}

/** Hook: whether this client may change something. */
export const useMayOperate = () => useStore((now) => now.session?.role === "operator");

const NOTICE_MS = 6_000;
let lastNotice = 0;

/** Show a message for some seconds; screen readers read it out. `kind`: "good" or "bad". */
export function notify(text, kind = "good") {
  const id = ++lastNotice;
  update({ notices: [...state.notices.slice(-2), { id, text, kind }] });
  setTimeout(() => dismiss(id), NOTICE_MS);
}

/** Remove a message. */
export function dismiss(id) {
  update({ notices: state.notices.filter((notice) => notice.id !== id) });
}
