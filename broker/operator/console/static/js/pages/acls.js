// Access control lists, filtered as Kafka's protocol filters them. The filters are in the address.
import { api } from "../api.js";
import { Empty, PageError, PageHead, Waiting } from "../components/basics.js";
import { Choice, FilterForm, Text, valuesOf } from "../components/filters.js";
import { count } from "../format.js";
import { html, useRef, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { CreateAcls, DeleteAcls } from "./acl_changes.js";
import { AclTable, words } from "./acl_table.js";
import { SecurityTabs } from "./security.js";

const FILTERS = ["principal", "resource_type", "resource", "operation", "permission"];

export function AclsPage({ query }) {
  const filters = valuesOf(query, FILTERS);
  const isFiltered = FILTERS.some((name) => filters[name] !== "");
  // Not by itself: a cluster may have many, and they seldom change.
  const poll = usePoll((signal) => api.acls({ ...filters, pattern: filters.resource && "match" }, signal), 0, [filters]);
  const [dialog, setDialog] = useState(null);
  const mayOperate = useMayOperate();
  const close = () => setDialog(null);
  const changed = (verb) => ({ acls }) => {
    close();
    notify(`${count(acls.length, "ACL")} ${verb}.`);
    poll.refresh();
  };
  const found = poll.data;
  const newest = useRef({ authorizer: true, operations: {} }); // what no filter changes, while an answer is awaited
  if (found !== null) newest.current = found;
  const { authorizer, operations } = newest.current;
  const mayChange = mayOperate && authorizer;
  return html`
    <${PageHead} title="ACLs">
      ${mayChange &&
      html`
        ${isFiltered && found?.acls.length > 1 && !found.more &&
        html`<button type="button" class="danger-quiet" onClick=${() => setDialog({ kind: "delete", acls: found.acls })}>
          Delete these ${found.acls.length}
        </button>`}
        <button type="button" class="primary" data-key="n" onClick=${() => setDialog({ kind: "create" })}>Create ACLs</button>
      `}
    <//>
    <${SecurityTabs} current="ACLs" />
    ${!authorizer
      ? html`<${NoAuthorizer} />`
      : html`
          <${FilterForm} label="ACLs" values=${filters} apply=${(values) => go(["security", "acls"], values)}
            fields=${(of) => fields(of, operations)} />
          ${found === null
            ? html`<${Waiting} poll=${poll} />`
            : html`
                <${PageError} error=${poll.error} retry=${poll.refresh} />
                <p class="note" role="status">
                  ${found.more ? `The first ${count(found.acls.length, "ACL")}: filter for the others.` : `${count(found.acls.length, "ACL")}.`}
                  ${found.super_users.length > 0 && ` Super users may do everything: ${found.super_users.join(", ")}.`}
                </p>
                ${found.acls.length > 0
                  ? html`<${AclTable} acls=${found.acls} remove=${mayChange && ((acl) => setDialog({ kind: "delete", acls: [acl] }))} />`
                  : html`<${NoAcls} isFiltered=${isFiltered} />`}
              `}
        `}
    ${dialog?.kind === "create" &&
    html`<${CreateAcls} operations=${operations} principal=${filters.principal} close=${close} done=${changed("created")} />`}
    ${dialog?.kind === "delete" && html`<${DeleteAcls} acls=${dialog.acls} close=${close} done=${changed("deleted")} />`}
  `;
}

function fields(of, operations) {
  const all = [...new Set(Object.values(operations).flat())].sort();
  const choices = (names) => [["", "All"], ...names.map((name) => [name, words(name)])];
  return html`
    <${Text} label="Principal" placeholder="User:alice" data-key="/" ...${of("principal")} />
    <${Choice} label="Type" choices=${choices(Object.keys(operations))} ...${of("resource_type")} />
    <${Text} label="Applies to" placeholder="name of a resource" ...${of("resource")} />
    <${Choice} label="Operation" choices=${choices(all)} ...${of("operation")} />
    <${Choice} label="Permission" choices=${choices(["allow", "deny"])} ...${of("permission")} />
  `;
}

function NoAuthorizer() {
  return html`
    <${Empty} title="There is no authorizer: every client may do everything.">
      <p>With <code>authorizer.enabled = true</code>, and a super user who cannot be locked out, nodes decide by ACLs.</p>
    <//>
  `;
}

function NoAcls({ isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No ACL is selected by these filters." />`;
  return html`<${Empty} title="There are no ACLs."><p>Only super users may do anything, unless the settings say otherwise.</p><//>`;
}
