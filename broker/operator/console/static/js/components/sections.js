// The navigation between sections. Where they do not fit it scrolls, and arrows at its ends say so.
import { html, useEffect, useRef, useState } from "../html.js";
import { href } from "../router.js";
import { useStore } from "../store.js";

/** Sections: name, path, and whether a session has it. */
const SECTIONS = [
  ["Cluster", []],
  ["Topics", ["topics"]],
  ["Schemas", ["schemas"], (session) => session?.has_schema_registry],
  ["Tables", ["tables"]],
  ["Groups", ["groups"]],
  ["Transactions", ["transactions"]],
  ["Storage", ["storage"]],
  ["Balance", ["balance"]],
  ["Cost", ["cost"]],
  ["Connect", ["connect"], (session) => session?.has_connect],
  ["Security", ["security"]],
  ["Quotas", ["quotas"]],
  ["Audit", ["audit"], (session) => session?.role === "operator"],
];
/** Share of what is seen that an arrow scrolls by. */
const STEP = 0.7;

/** The section of a page: nodes belong to the cluster. */
const sectionOf = (route) => (route.path[0] === "nodes" ? "" : (route.path[0] ?? ""));

export function Sections({ route }) {
  const session = useStore((state) => state.session);
  const list = useRef(null);
  const [hidden, setHidden] = useState({ before: false, after: false });
  const shown = SECTIONS.filter(([, , isThere]) => !isThere || isThere(session));
  useEffect(() => {
    const element = list.current;
    const look = () => {
      const after = element.scrollWidth - element.clientWidth - element.scrollLeft;
      setHidden({ before: element.scrollLeft > 1, after: after > 1 });
    };
    const observer = new ResizeObserver(look); // which looks at once
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [shown.length]);
  const section = sectionOf(route);
  useEffect(() => {
    list.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [section, shown.length]);
  const scroll = (direction) => list.current.scrollBy({ left: direction * STEP * list.current.clientWidth });
  // The arrows are for pointers: keys and screen readers go from link to link.
  const arrow = (name, sign, direction) =>
    html`<button type="button" class=${`arrow-${name}`} tabindex="-1" aria-hidden="true" onClick=${() => scroll(direction)}>${sign}</button>`;
  return html`
    <div class="sections-place">
      <nav class="sections" aria-label="Sections" ref=${list}>
        ${shown.map(
          ([text, path]) => html`
            <a href=${href(path)} aria-current=${section === (path[0] ?? "") ? "page" : undefined}>${text}</a>
          `,
        )}
      </nav>
      ${hidden.before && arrow("before", "‹", -1)} ${hidden.after && arrow("after", "›", 1)}
    </div>
  `;
}
