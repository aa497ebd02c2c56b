// Transactions of the whole cluster.
import { api } from "../api.js";
import { Empty, Name, PageHead, Section, State, Unreachable, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { ago, duration } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";

/** States in which a transaction holds back readers of committed records. */
const OPEN = new Set(["ongoing", "preparecommit", "prepareabort", "prepareepochfence"]);
const isOpen = (row) => OPEN.has(row.state.toLowerCase().replaceAll("_", ""));

/** Columns of a table. On a phone there is no room for the state where all have the same, nor for partitions where none has. */
const columnsOf = (areOpen) => [
  { title: "Transactional id", cell: (row) => html`<${Name} text=${row.transactional_id} />`, value: (row) => row.transactional_id },
  { title: "State", cell: (row) => html`<${State} kind=${isOpen(row) ? "warn" : "off"}>${row.state}<//>`, value: (row) => row.state, wide: areOpen },
  { title: "Started", cell: (row) => ago(row.started_ms), value: (row) => row.started_ms, numeric: true },
  { title: "Time limit", cell: (row) => duration(row.timeout_ms), value: (row) => row.timeout_ms, numeric: true, wide: true },
  { title: "Producer", cell: (row) => `${row.producer_id}, epoch ${row.epoch}`, value: (row) => row.producer_id, numeric: true, wide: true },
  {
    title: "Partitions",
    cell: (row) =>
      row.partitions.length === 0
        ? "–"
        : row.partitions.map(
            ({ topic, partition }, index) =>
              html`${index > 0 && ", "}<a href=${href(["topics", topic, "partitions", partition])}><${Name} text=${`${topic} ${partition}`} /></a>`,
          ),
    wide: !areOpen,
  },
  { title: "Coordinator", cell: (row) => `node ${row.coordinator}`, value: (row) => row.coordinator, wide: true },
];

export function TransactionsPage() {
  const poll = usePoll((signal) => api.transactions(signal), 3_000, []);
  const rows = poll.data?.transactions ?? [];
  const open = rows.filter(isOpen);
  const others = rows.filter((row) => !isOpen(row));
  const table = (caption, part) =>
    html`<${Table} caption=${caption} columns=${columnsOf(part === open)} rows=${part} rowKey=${(row) => row.transactional_id} sort=${0} />`;
  return html`
    <${PageHead} title="Transactions" />
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${Unreachable} nodes=${poll.data.unreachable} />
          <${Section} id="open" title="Open" note="Readers of committed records wait at the first record of an open transaction.">
            ${open.length > 0 ? table("Open transactions", open) : html`<${Empty} title="No transaction is open." />`}
          <//>
          <${Section} id="others" title="Known transactional ids" note="Producers of a partition are on the partition's page.">
            ${others.length > 0
              ? table("Known transactional ids", others)
              : html`<${Empty} title="None.">
                  <p>A producer with <code>transactional.id</code> appears here after it has begun its first transaction.</p>
                <//>`}
          <//>
        `}
  `;
}
