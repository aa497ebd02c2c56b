// What the pages about security have in common: their tabs, and the state of the authorizer.
import { html } from "../html.js";
import { href } from "../router.js";

const TABS = [
  ["Users", ["security"]],
  ["ACLs", ["security", "acls"]],
  ["Delegation tokens", ["security", "tokens"]],
];

/** Links between the pages about security. `current`: the text of the present one. */
export function SecurityTabs({ current }) {
  return html`
    <nav class="tabs" aria-label="Security">
      ${TABS.map(([text, path]) => html`<a href=${href(path)} aria-current=${text === current ? "page" : undefined}>${text}</a>`)}
    </nav>
  `;
}

/** Principal of a user. */
export const principalOf = (user) => `User:${user}`;
