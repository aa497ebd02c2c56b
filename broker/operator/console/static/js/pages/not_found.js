// An address that names no page.
import { Empty, PageHead } from "../components/basics.js";
import { html } from "../html.js";
import { href } from "../router.js";

export function NotFoundPage() {
  return html`
    <${PageHead} title="Not found" />
    <${Empty} title="There is no such page."><p><a href=${href([])}>Go to the cluster</a></p><//>
  `;
}
