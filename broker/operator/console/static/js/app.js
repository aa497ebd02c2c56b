// The frame around the pages: navigation, session, messages, and what is shown while the node does not answer.
import { api, hasToken, setToken } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { SHORTCUTS, startKeys } from "./keys.js";
import { usePoll } from "./poll.js";
import { href, useRoute } from "./router.js";
import { dismiss, getState, update, useStore } from "./store.js";
import { currentTheme, nextTheme } from "./theme.js";
import { duration } from "./format.js";
import { Dialog } from "./components/dialog.js";
import { ErrorLine } from "./components/basics.js";
import { Sections } from "./components/sections.js";
import { SignIn } from "./pages/sign_in.js";
import { findPage } from "./pages/index.js";

const CLUSTER_MS = 10_000;
/** Pause between the questions whether the node answers. */
const PROBE_PAUSE_MS = 2_000;
/** Pause between attempts while the node does not answer. */
const AGAIN_MS = 1_500;

export function App() {
  const route = useRoute();
  const needsToken = useStore((state) => state.needsToken);
  const session = useStore((state) => state.session);
  const isDown = useStore((state) => state.unreachableSince !== null);
  const [showsHelp, setShowsHelp] = useState(false);
  useEffect(() => startKeys(() => setShowsHelp(true)), []);

  // The session first: it says whether a token is needed. Then the cluster, for the head of all pages.
  const poll = usePoll(
    async (signal) => {
      if (needsToken) return null;
      if (getState().session === null && !hasToken() && (await api.needsToken(signal))) {
        update({ needsToken: true });
        return null;
      }
      update({ session: await api.session(signal) });
      const cluster = await api.cluster(signal);
      update({ cluster });
      return cluster;
    },
    CLUSTER_MS,
    [needsToken],
  );
  return html`
    <a class="skip" href="#main" onClick=${toMain}>Skip to the content</a>
    <${Header} showHelp=${() => setShowsHelp(true)} route=${route} />
    <${Outage} />
    <main id="main" tabindex="-1">
      ${needsToken
        ? html`<${SignIn} />`
        : session !== null
          ? html`<${Page} route=${route} />`
          : !isDown && html`<${ErrorLine} error=${poll.error} retry=${poll.refresh} />`}
    </main>
    <${Notices} />
    ${showsHelp && html`<${Help} close=${() => setShowsHelp(false)} />`}
  `;
}

function toMain(event) {
  event.preventDefault(); // the hash is the route
  document.getElementById("main").focus();
}

/** The page of the route. A new page gets the focus at its title, so that a screen reader begins there. */
function Page({ route }) {
  const { component, title, parameters, name } = findPage(route.path);
  const isFirst = useRef(true);
  const path = route.path.join("/");
  useEffect(() => {
    document.title = `${title} – Anabranch`;
    if (!isFirst.current) {
      scrollTo(0, 0);
      document.querySelector("main h1")?.focus({ preventScroll: true });
    }
    isFirst.current = false;
  }, [path]);
  return html`<${component} key=${name} ...${parameters} query=${route.query} />`;
}

function Header({ showHelp, route }) {
  const session = useStore((state) => state.session);
  const cluster = useStore((state) => state.cluster);
  const [theme, setTheme] = useState(currentTheme());
  useEffect(() => {
    const listener = () => setTheme(currentTheme());
    document.addEventListener("console:theme", listener);
    return () => document.removeEventListener("console:theme", listener);
  }, []);
  return html`
    <header class="top">
      <a class="brand" href=${href([])}><img src="icon.svg" alt="" width="24" height="24" /><span>Anabranch</span></a>
      <${Sections} route=${route} />
      <div class="top-right">
        ${session && html`<span class="where" title=${cluster ? `cluster ${cluster.cluster_id}` : ""}>node ${session.node_id}</span>`}
        ${session?.role === "reader" && html`<span class="badge">read only</span>`}
        ${session?.authentication && hasToken() && html`<button type="button" class="plain" onClick=${signOut}>Sign out</button>`}
        <button type="button" class="plain" onClick=${nextTheme} aria-label=${`Colours: ${theme}. Change`} title=${`Colours: ${theme}`}>
          ${{ system: "◐", light: "☀", dark: "☾" }[theme]}
        </button>
        <button type="button" class="plain" onClick=${showHelp} aria-label="Keyboard shortcuts" title="Keyboard shortcuts">?</button>
      </div>
    </header>
  `;
}

function signOut() {
  setToken("");
  update({ session: null, cluster: null, needsToken: true });
}

/** One line while the node does not answer, or cannot write. */
function Outage() {
  const since = useStore((state) => state.unreachableSince);
  const cluster = useStore((state) => state.cluster);
  usePoll((signal) => api.probe(signal), since === null ? PROBE_PAUSE_MS : AGAIN_MS, []);
  const [, setTick] = useState(0);
  useEffect(() => {
    if (since === null) return undefined;
    const timer = setInterval(() => setTick((tick) => tick + 1), 1000);
    return () => clearInterval(timer);
  }, [since]);
  let text = "";
  if (since !== null) text = `${location.host} does not answer. Trying again; what you see is from before.`;
  else if (cluster && !cluster.writable) text = `The node cannot write: ${cluster.obstacles.join("; ") || "see its log"}`;
  else if (cluster?.outages?.length) text = cluster.outages.map((each) => `${each.where}: ${each.reason}`).join("; ");
  return html`
    <div class="outage-place" role="status">
      ${text && html`<p class="outage">${text}${since !== null && html` <span aria-hidden="true">(${duration(Date.now() - since)})</span>`}</p>`}
    </div>
  `;
}

function Notices() {
  const notices = useStore((state) => state.notices);
  return html`
    <div class="notices" role="status">
      ${notices.map(
        (notice) => html`
          <div key=${notice.id} class="notice ${notice.kind}">
            <span>${notice.text}</span>
            <button type="button" class="plain" onClick=${() => dismiss(notice.id)} aria-label="Dismiss">✕</button>
          </div>
        `,
      )}
    </div>
  `;
}

function Help({ close }) {
  return html`
    <${Dialog} title="Keyboard shortcuts" close=${close}>
      <div class="dialog-body">
        <dl class="shortcuts">
          ${SHORTCUTS.map(
            ([keys, text]) => html`
              <div><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${text}</dd></div>
            `,
          )}
        </dl>
      </div>
    <//>
  `;
}
