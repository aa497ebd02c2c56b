// The users of SASL/SCRAM.
import { api } from "../api.js";
import { Command, Empty, Name, PageError, PageHead, State, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { count, number } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { principalOf, SecurityTabs } from "./security.js";
import { ChangePassword, CreateUser, DeleteUser } from "./user_changes.js";

export function UsersPage({ query }) {
  const poll = usePoll((signal) => api.users(signal), 10_000, []);
  const [dialog, setDialog] = useState(null);
  const mayOperate = useMayOperate();
  const search = query.search ?? "";
  const rows = (poll.data?.users ?? []).filter((row) => row.name.toLowerCase().includes(search.toLowerCase()));
  const close = () => setDialog(null);
  const changed = (text) => () => {
    close();
    notify(text);
    poll.refresh();
  };
  return html`
    <${PageHead} title="Users">
      ${mayOperate && html`<button type="button" class="primary" data-key="n" onClick=${() => setDialog({ kind: "create" })}>Create a user</button>`}
    <//>
    <${SecurityTabs} current="Users" />
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <div class="filters" role="search">
            <input type="search" data-key="/" placeholder="Search by name" aria-label="Search users by name" value=${search}
              onInput=${(event) => go(["security"], { search: event.target.value }, { replace: true })} />
            <span class="note" role="status">${count(rows.length, "user")}${poll.data.more ? ", the list is cut" : ""}</span>
          </div>
          ${rows.length > 0
            ? html`<${Table} caption="Users" columns=${columnsOf(mayOperate && setDialog)} rows=${rows} rowKey=${(row) => row.name} sort=${0} />`
            : html`<${NoUsers} search=${search} />`}
          <p class="note">
            These users authenticate themselves with SASL/SCRAM. Those of SASL/PLAIN, of certificates and of an identity provider
            are not known here. Passwords cannot be shown: nodes do not know them.
          </p>
        `}
    ${dialog?.kind === "create" && html`<${CreateUser} close=${close} done=${({ name }) => changed(`User ${name} is created.`)()} />`}
    ${dialog?.kind === "password" &&
    html`<${ChangePassword} user=${dialog.user} close=${close} done=${changed(`${dialog.user.name} has a new password.`)} />`}
    ${dialog?.kind === "delete" && html`<${DeleteUser} name=${dialog.user.name} close=${close} done=${changed(`User ${dialog.user.name} is deleted.`)} />`}
  `;
}

/** Columns of the table. `open`: opens a dialog; false: there are no changes. */
function columnsOf(open) {
  const iterations = (row) => [...new Set(row.credentials.map((each) => each.iterations))];
  return [
    {
      title: "User",
      cell: (row) => html`
        <${Name} text=${row.name} />
        ${row.credentials.some((each) => each.iterations === null) && html` <${State} kind="bad">damaged<//>`}
      `,
      value: (row) => row.name,
    },
    {
      title: "Mechanisms",
      cell: (row) =>
        row.credentials.map(({ mechanism }, index) => html`${index > 0 && ", "}<span class="whole">${mechanism}</span>`),
      wide: true,
    },
    { title: "Iterations", cell: (row) => iterations(row).map(number).join(", "), numeric: true, wide: true },
    {
      title: "Rights",
      cell: (row) =>
        html`<a href=${href(["security", "acls"], { principal: principalOf(row.name) })} aria-label=${`ACLs of ${row.name}`}>ACLs</a>`,
    },
    ...(open
      ? [
          {
            title: "Change",
            cell: (row) => html`
              <div class="actions">
                <button type="button" class="small" aria-label=${`New password for ${row.name}`} onClick=${() => open({ kind: "password", user: row })}>
                  New password
                </button>
                <button type="button" class="small danger-quiet" aria-label=${`Delete ${row.name}`} onClick=${() => open({ kind: "delete", user: row })}>
                  Delete
                </button>
              </div>
            `,
          },
        ]
      : []),
  ];
}

function NoUsers({ search }) {
  if (search) return html`<${Empty} title=${`No user's name contains “${search}”.`} />`;
  return html`
    <${Empty} title="There are no users.">
      <p>A user needs a listener with SASL to log in at. The first one can be created before a node runs:</p>
      <${Command} text="anabranch user create admin --config node.toml" />
    <//>
  `;
}
