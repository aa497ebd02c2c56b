// Tables of ACLs, which say as a sentence what somebody may do, or may not.
import { Name, State } from "../components/basics.js";
import { Table } from "../components/table.js";
import { html } from "../html.js";

/** `transactional_id` as words. */
export const words = (name) => name.replaceAll("_", " ");

const keyOf = (acl) => JSON.stringify(Object.entries(acl).sort());

/** What an ACL is about. */
function Resource({ acl }) {
  if (acl.resource_type === "cluster") return "the cluster";
  if (acl.pattern === "literal" && acl.resource === "*") return `every ${words(acl.resource_type)}`;
  const type = acl.resource_type === "user" ? "of" : words(acl.resource_type); // its operations are about tokens
  return html`${type} ${acl.pattern === "prefixed" && "beginning with "}<code><${Name} text=${acl.resource} /></code>`;
}

const COLUMNS = [
  { title: "Principal", cell: (acl) => html`<${Name} text=${acl.principal} />`, value: (acl) => acl.principal },
  {
    title: "May",
    cell: (acl) => html`
      <${State} kind=${acl.permission === "allow" ? "good" : "bad"}>${acl.permission === "deny" && "not "}${words(acl.operation)}<//>${" "}
      <${Resource} acl=${acl} />
    `,
    value: (acl) => `${acl.resource_type} ${acl.resource} ${acl.operation}`,
  },
  { title: "From", cell: (acl) => (acl.host === "*" ? "anywhere" : acl.host), value: (acl) => acl.host, wide: true },
];

/** A table of ACLs. `remove(acl)` deletes one; without it there is no such button. */
export function AclTable({ acls, remove }) {
  const change = {
    title: "Change",
    cell: (acl) => html`
      <button type="button" class="small danger-quiet" onClick=${() => remove(acl)}
        aria-label=${`Delete: ${acl.permission} ${acl.principal} ${words(acl.operation)} ${words(acl.resource_type)} ${acl.resource}`}>
        Delete
      </button>
    `,
  };
  return html`<${Table} caption="ACLs" columns=${remove ? [...COLUMNS, change] : COLUMNS} rows=${acls} rowKey=${keyOf} sort=${0} />`;
}
