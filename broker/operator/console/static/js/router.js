// Hash routes: `#/topics/orders/records?partition=1`. They work from any path, and the node never sees them.
import { useEffect, useState } from "./html.js";

/** Return the route of the address: {path: ["topics", "orders"], query: {partition: "1"}}. */
export function currentRoute() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(search)),
  };
}

/** Return a part of a path decoded; an address that somebody typed may be no valid encoding. */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Return the address of a page, for links. */
export function href(path, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(known).toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${search ? `?${search}` : ""}`;
}

/** Go to a page. `replace`: the browser's "back" does not return to the present one. */
export function go(path, query = {}, { replace = false } = {}) {
  if (replace) location.replace(href(path, query));
  else location.hash = href(path, query);
}

/** Hook: the route of the address. */
export function useRoute() {
  const [route, setRoute] = useState(currentRoute);
  useEffect(() => {
    const listener = () => setRoute(currentRoute());
    addEventListener("hashchange", listener);
    return () => removeEventListener("hashchange", listener);
  }, []);
  return route;
}
