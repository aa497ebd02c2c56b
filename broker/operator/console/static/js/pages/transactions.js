// Transactions of the whole cluster, which can be aborted.
import { api } from "../api.js";
import { Empty, Name, PageHead, Section, State, Unreachable, Waiting } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { Table } from "../components/table.js";
import { ago, count, duration } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { notify, useMayOperate } from "../store.js";

/** States in which a transaction holds back readers of committed records. */
const OPEN = new Set(["ongoing", "preparecommit", "prepareabort", "prepareepochfence"]);
const isOpen = (row) => OPEN.has(row.state.toLowerCase().replaceAll("_", ""));

/** Return whether a transaction is open for longer than its producer allows: its coordinator has not ended it so far. */
const isOverdue = (row) => isOpen(row) && row.started_ms !== null && Date.now() - row.started_ms > row.timeout_ms;

const partitionLinks = (row) =>
  row.partitions.map(
    ({ topic, partition }, index) =>
      html`${index > 0 && ", "}<a href=${href(["topics", topic, "partitions", partition])}><${Name} text=${`${topic} ${partition}`} /></a>`,
  );

/**
 * Columns of a table. On a phone there is no room for the state where all have the same, nor for the start of what has ended, nor for
 * partitions where none has, or where the plan of an abort shows them.
 * `abort(row)` offers to abort a transaction; null: the user may not.
 */
const columnsOf = (areOpen, abort) => [
  { title: "Transactional id", cell: (row) => html`<${Name} text=${row.transactional_id} />`, value: (row) => row.transactional_id },
  { title: "State", cell: (row) => html`<${State} kind=${isOpen(row) ? "warn" : "off"}>${row.state}<//>`, value: (row) => row.state, wide: areOpen },
  {
    title: "Started",
    cell: (row) => (isOverdue(row) ? html`<${State} kind="bad">${ago(row.started_ms)}<//>` : ago(row.started_ms)),
    value: (row) => row.started_ms,
    numeric: true,
    wide: !areOpen,
  },
  { title: "Time limit", cell: (row) => duration(row.timeout_ms), value: (row) => row.timeout_ms, numeric: true, wide: true },
  { title: "Producer", cell: (row) => `${row.producer_id}, epoch ${row.epoch}`, value: (row) => row.producer_id, numeric: true, wide: true },
  { title: "Partitions", cell: (row) => (row.partitions.length === 0 ? "–" : partitionLinks(row)), wide: !areOpen || Boolean(abort) },
  { title: "Coordinator", cell: (row) => `node ${row.coordinator}`, value: (row) => row.coordinator, wide: true },
  ...(areOpen && abort
    ? [
        {
          title: "Change",
          cell: (row) =>
            row.state === "Ongoing" &&
            html`<button type="button" class="small danger-quiet" onClick=${() => abort(row)} aria-label=${`Abort the transaction of ${row.transactional_id}`}>Abort</button>`,
        },
      ]
    : []),
];

export function TransactionsPage() {
  const poll = usePoll((signal) => api.transactions(signal), 3_000, []);
  const [aborts, setAborts] = useState(null); // the row of the transaction
  const mayOperate = useMayOperate();
  const rows = poll.data?.transactions ?? [];
  const open = rows.filter(isOpen);
  const others = rows.filter((row) => !isOpen(row));
  const table = (caption, part) =>
    html`<${Table} caption=${caption} columns=${columnsOf(part === open, mayOperate ? setAborts : null)} rows=${part}
      rowKey=${(row) => row.transactional_id} sort=${0} />`;
  const aborted = (row) => {
    setAborts(null);
    notify(`The transaction of ${row.transactional_id} has ended.`);
    poll.refresh();
  };
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
              : html`<${Empty} title=${open.length > 0 ? "No others." : "None."}>
                  <p>A producer with <code>transactional.id</code> appears here after it has begun its first transaction.</p>
                <//>`}
          <//>
        `}
    ${aborts && html`<${AbortTransaction} row=${aborts} close=${() => setAborts(null)} done=${aborted} />`}
  `;
}

function AbortTransaction({ row, close, done }) {
  const show = (plan) => html`
    <p>
      What it has written to ${count(plan.partitions.length, "partition")} is never seen by readers of committed records, and they read on.
      Its producer gets an error at its next request, as if another with the same id had started.
    </p>
    ${plan.partitions.length > 0 && html`<p>${partitionLinks(plan)}</p>`}
  `;
  return html`
    <${ChangeDialog} title=${`Abort the transaction of ${row.transactional_id}`} verb="Abort" danger close=${close} done=${done}
      plan=${() => api.abortTransaction(row.transactional_id, true)} act=${() => api.abortTransaction(row.transactional_id, false)} show=${show} />
  `;
}
