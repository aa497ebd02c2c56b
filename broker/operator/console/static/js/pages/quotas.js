// Quotas of users, client ids and addresses.
import { api } from "../api.js";
import { Empty, Name, PageError, PageHead, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { count } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { entityText, QUOTAS } from "./quota_names.js";
import { RemoveQuotas, SetQuotas } from "./quota_changes.js";

export function QuotasPage({ query }) {
  const poll = usePoll((signal) => api.quotas(signal), 10_000, []);
  const [dialog, setDialog] = useState(null);
  const mayOperate = useMayOperate();
  const search = query.search ?? "";
  const rows = (poll.data?.quotas ?? []).filter((row) => entityText(row.entity).toLowerCase().includes(search.toLowerCase()));
  const close = () => setDialog(null);
  const changed = ({ changes }) => {
    close();
    notify(changes.length > 0 ? `${count(changes.length, "quota")} changed.` : "Nothing has changed.");
    poll.refresh();
  };
  return html`
    <${PageHead} title="Quotas">
      ${mayOperate && html`<button type="button" class="primary" data-key="n" onClick=${() => setDialog({ kind: "set", row: null })}>Set a quota</button>`}
    <//>
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <div class="filters" role="search">
            <input type="search" data-key="/" placeholder="Search by name" aria-label="Search quotas by name" value=${search}
              onInput=${(event) => go(["quotas"], { search: event.target.value }, { replace: true })} />
            <span class="note" role="status">${count(rows.length, "entity", "entities")} with quotas${poll.data.more ? ", the list is cut" : ""}</span>
          </div>
          ${rows.length > 0
            ? html`<${Table} caption="Quotas" columns=${columnsOf(mayOperate && setDialog)} rows=${rows} rowKey=${(row) => entityText(row.entity)} sort=${0} />`
            : html`<${NoQuotas} search=${search} />`}
          <p class="note">
            A client is subject to the most specific quota: that of its user and client id, then of its user, then of its client id, each by
            name before “any”. Each node counts for itself.
          </p>
        `}
    ${dialog?.kind === "set" && html`<${SetQuotas} row=${dialog.row} close=${close} done=${changed} />`}
    ${dialog?.kind === "remove" && html`<${RemoveQuotas} row=${dialog.row} close=${close} done=${changed} />`}
  `;
}

/** Columns of the table. `open`: opens a dialog; false: there are no changes. */
function columnsOf(open) {
  return [
    { title: "Of", cell: (row) => html`<${Name} text=${entityText(row.entity)} />`, value: (row) => entityText(row.entity) },
    {
      title: "Quotas",
      cell: (row) => html`
        <ul class="lines">
          ${Object.entries(row.quotas).map(([name, value]) => html`<li>${QUOTAS[name]?.label ?? name}: <b class="numeric">${QUOTAS[name]?.text(value) ?? value}</b></li>`)}
        </ul>
      `,
    },
    ...(open
      ? [
          {
            title: "Change",
            cell: (row) => html`
              <div class="actions">
                <button type="button" class="small" aria-label=${`Change quotas of ${entityText(row.entity)}`} onClick=${() => open({ kind: "set", row })}>
                  Change
                </button>
                <button type="button" class="small danger-quiet" aria-label=${`Remove quotas of ${entityText(row.entity)}`}
                  onClick=${() => open({ kind: "remove", row })}>
                  Remove
                </button>
              </div>
            `,
          },
        ]
      : []),
  ];
}

function NoQuotas({ search }) {
  if (search) return html`<${Empty} title=${`No quota is of “${search}”.`} />`;
  return html`<${Empty} title="No quota is set."><p>Clients may use as much as the nodes have.</p><//>`;
}
