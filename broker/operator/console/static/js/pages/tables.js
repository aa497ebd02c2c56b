// The tables of topics, with search.
import { api } from "../api.js";
import { Command, Empty, Name, PageError, PageHead, State, Time, Unreachable, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { INSTALL_TABLES, makeTable } from "../commands.js";
import { bytes, count, duration, number } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { useStore } from "../store.js";

export function TablesPage({ query }) {
  const poll = usePoll((signal) => api.tables(signal), 5_000, []);
  const search = query.search ?? "";
  const change = (changes) => go(["tables"], { ...query, ...changes }, { replace: true });
  const all = poll.data?.tables ?? [];
  const rows = all.filter((table) => table.name.toLowerCase().includes(search.toLowerCase()));
  return html`
    <${PageHead} title="Tables" />
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <${Unreachable} nodes=${poll.data.unreachable} />
          ${all.length === 0
            ? html`<${NoTables} />`
            : html`
                <div class="filters" role="search">
                  <input type="search" data-key="/" placeholder="Search by name" aria-label="Search tables by name"
                    value=${search} onInput=${(event) => change({ search: event.target.value })} />
                  <span class="note" role="status">${count(rows.length, "table")}${poll.data.more ? ", the list is cut" : ""}</span>
                </div>
                ${rows.length > 0
                  ? html`<${Table} caption="Tables" columns=${COLUMNS} rows=${rows} rowKey=${(table) => table.name} sort=${0} />`
                  : html`<${Empty} title=${`No table's name contains “${search}”.`} />`}
                <p class="note">
                  A table has the committed records of its topic, for engines that read Iceberg. Lag: offsets of the topic that are not in it yet,
                  and for how long the first of them has waited. Errors: rows whose value could not be decoded, since the table's node began.
                </p>
              `}
        `}
  `;
}

const COLUMNS = [
  {
    title: "Table",
    cell: (row) => html`
      <a href=${href(["tables", row.name])}><${Name} text=${row.name} /></a>
      ${row.last_error && html` <${State} kind="bad">waits<//>`}
      ${!row.enabled && html` <${State} kind="off">${row.topic === null ? "without a topic" : "switched off"}<//>`}
    `,
    value: (row) => row.name,
  },
  { title: "Rows", cell: (row) => number(row.rows), value: (row) => row.rows, numeric: true },
  { title: "Files", cell: (row) => number(row.files), value: (row) => row.files, numeric: true, wide: true },
  { title: "Size", cell: (row) => bytes(row.bytes), value: (row) => row.bytes, numeric: true, wide: true },
  { title: "Lag", cell: (row) => html`<${Lag} of=${row} />`, value: (row) => row.lag, numeric: true },
  { title: "Errors", cell: (row) => number(row.error_rows), value: (row) => row.error_rows, numeric: true, wide: true },
  {
    title: "Last snapshot",
    cell: (row) => (row.committed_ms === null ? "none yet" : html`<${Time} at_ms=${row.committed_ms} />`),
    value: (row) => row.committed_ms,
    wide: true,
  },
];

/** Offsets that a table does not have yet, and how long the first of them has waited. */
function Lag({ of }) {
  return html`${number(of.lag)}${of.lag > 0 && of.lag_ms !== null && html` <small>${duration(of.lag_ms)}</small>`}`;
}

function NoTables() {
  const hasTables = useStore((state) => state.session?.has_tables);
  return html`
    <${Empty} title="No topic is a table yet.">
      ${hasTables
        ? html`
            <p>A topic that is one can be read as an Iceberg table, with no job that copies it. For records that are JSON:</p>
            <${Command} text=${makeTable("TOPIC")} />
          `
        : html`
            <p>This node lacks the packages that topics need for this:</p>
            <${Command} text=${INSTALL_TABLES} />
          `}
    <//>
  `;
}
