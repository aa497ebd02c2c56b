// One table: its columns, snapshots and files, how far it is behind its topic, and queries for engines.
import { api } from "../api.js";
import { Command, Empty, Figures, isMissing, Name, PageError, PageHead, Section, State, Time, Unreachable, Waiting } from "../components/basics.js";
import { Choice } from "../components/filters.js";
import { Table } from "../components/table.js";
import { bytes, count, duration, number } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate, useStore } from "../store.js";
import { CommitTable, DropTable } from "./table_changes.js";
import { ENGINES, queryOf } from "./table_queries.js";

/** Rows of a list that are shown at first, and more at a time. */
const ROWS = 10;

export function TablePage({ table, query }) {
  const poll = usePoll((signal) => api.table(table, signal), 5_000, [table]);
  const [dialog, setDialog] = useState(null);
  const mayOperate = useMayOperate();
  const found = isMissing(poll) ? null : poll.data;
  const close = () => setDialog(null);
  const dropped = () => {
    notify(`Table ${table} is dropped.`);
    go(["tables"]);
  };
  const committed = ({ rows }) => {
    close();
    notify(`The table has ${count(rows, "row")}: all that was committed in its topic.`);
    poll.refresh();
  };
  return html`
    <${PageHead} title=${table} crumbs=${[["Tables", href(["tables"])]]}>
      ${mayOperate &&
      found &&
      html`
        ${found.enabled && html`<button type="button" onClick=${() => setDialog("commit")}>Commit now</button>`}
        <button type="button" class="danger-quiet" onClick=${() => setDialog("drop")}>Drop</button>
      `}
    <//>
    ${found === null
      ? html`<${Waiting} poll=${poll} missing=${html`<p><a href=${href(["tables"])}>All tables</a></p>`} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <${Unreachable} nodes=${found.unreachable} />
          ${found.last_error && html`<p class="warning-line" role="status">The table waits: ${found.last_error}</p>`}
          ${found.publication?.error && html`<p class="warning-line" role="status">Not published in ${found.publication.catalog}: ${found.publication.error}</p>`}
          <${Summary} table=${found} />
          ${found.version > 0 &&
          html`
            <${Section} id="query" title="Query" note="Any engine that reads Iceberg sees the table, through the catalog that each node serves.">
              <${Queries} table=${found} query=${query} />
            <//>
            <${Section} id="schema" title="Schema"><${Columns} columns=${found.columns} /><//>
          `}
          ${found.error_rows > 0 && html`<${Section} id="errors" title="Errors"><${Errors} table=${found} /><//>`}
          <${Section} id="partitions" title="Partitions" note="Offsets of the topic that the table has.">
            <${Partitions} table=${found} />
          <//>
          ${found.version > 0 &&
          html`
            <${Section} id="snapshots" title="Snapshots" note="States of the table that can be read, newest first."><${Snapshots} table=${found} /><//>
            <${Section} id="files" title="Files" note="Parquet files of the newest snapshot."><${Files} table=${found} /><//>
          `}
        `}
    ${dialog === "commit" && html`<${CommitTable} table=${found} close=${close} done=${committed} />`}
    ${dialog === "drop" && html`<${DropTable} table=${found} close=${close} done=${dropped} />`}
  `;
}

/** The catalog that shows the table, too, and what it shows. */
function publishedIn({ catalog, version, lag_ms }) {
  const shown = version === null ? "nothing yet" : `version ${number(version)}`;
  return ["Published in", html`<${Name} text=${catalog} />`, lag_ms > 0 ? `${shown}, behind for ${duration(lag_ms)}` : shown];
}

function Summary({ table }) {
  const topic = table.topic && html`<a href=${href(["topics", table.topic])}><${Name} text=${table.topic} /></a>`;
  return html`
    <${Figures}
      items=${[
        ["Rows", number(table.rows)],
        ["Files", number(table.files), bytes(table.bytes)],
        ["Lag", number(table.lag), table.lag > 0 && table.lag_ms !== null ? `the first waits for ${duration(table.lag_ms)}` : "offsets that are not in it yet"],
        ["Errors", number(table.error_rows), "rows that were not decoded"],
        ["Last snapshot", table.committed_ms === null ? "none yet" : html`<${Time} at_ms=${table.committed_ms} />`, `${count(table.version, "commit")} in all`],
        ...(table.publication === null ? [] : [publishedIn(table.publication)]),
      ]}
    />
    <p class="note">
      ${topic ? html`Of the topic ${topic}. ` : "Its topic is gone, the table stays. "}
      ${!table.enabled && topic ? "The topic is no table any more: no rows are added. " : ""}
      ${table.committer !== null && html`Node ${table.committer} commits it. `}
      ${table.table_id && html`Table id <code>${table.table_id}</code>. `}
      ${table.publication?.snapshot_id && html`Published snapshot <code>${table.publication.snapshot_id}</code>.`}
    </p>
    ${table.snapshot_id === null &&
    html`<${Empty} title="The table has no rows yet.">
      <p>They follow when records are committed, after the topic's <code>table.commit.interval.ms</code>.</p>
    <//>`}
  `;
}

/** Queries of engines. The engine that is shown is in the address. */
function Queries({ table, query }) {
  const needsToken = useStore((state) => state.session?.authentication);
  const engine = query.engine in ENGINES ? query.engine : "spark";
  const choose = (event) => go(["tables", table.name], { ...query, engine: event.target.value }, { replace: true });
  return html`
    <div class="filter-form">
      <${Choice} label="Engine" choices=${Object.entries(ENGINES).map(([name, { title }]) => [name, title])} value=${engine} onChange=${choose} />
    </div>
    <div class="query"><${Command} text=${queryOf(engine, table, needsToken)} /></div>
    <p class="note">${ENGINES[engine].note} ${needsToken && html`<code>TOKEN</code>: one of the node's <code>admin.tables_token_file</code>.`}</p>
  `;
}

function Columns({ columns }) {
  const shown = [
    { title: "Column", cell: (row) => html`<code><${Name} text=${row.name} /></code>`, value: (row) => row.name },
    { title: "Type", cell: (row) => html`<code><${Name} text=${row.type} /></code>` },
    { title: "Required", cell: (row) => (row.required ? "yes" : "no"), wide: true },
    { title: "Id", cell: (row) => row.id, value: (row) => row.id, numeric: true },
  ];
  return html`<${Table} caption="Columns" columns=${shown} rows=${columns} rowKey=${(row) => row.id} />`;
}

/** Why values were not decoded, and how their rows are found. The reasons quote values, so not all see them. */
function Errors({ table }) {
  const mayReadRecords = useStore((state) => state.session?.may_read_records);
  return html`
    <p>
      ${count(table.error_rows, "row")} with a value that could not be decoded or did not fit, since node ${table.committer} has begun with the table.
      They have the reason in <code>_kafka.error</code> and the bytes in <code>_kafka.value_raw</code>.
      ${mayReadRecords ? "Some of the reasons:" : "Those who may see what records contain are shown the reasons here."}
    </p>
    <ul class="reasons">${table.reasons.map((reason) => html`<li>${reason}</li>`)}</ul>
  `;
}

function Partitions({ table }) {
  const columns = [
    {
      title: "Partition",
      cell: (row) => (table.topic ? html`<a href=${href(["topics", table.topic, "partitions", row.partition])}>${row.partition}</a>` : row.partition),
      value: (row) => row.partition,
    },
    { title: "From", cell: (row) => number(row.start_offset), value: (row) => row.start_offset, numeric: true },
    { title: "To", cell: (row) => number(row.end_offset), value: (row) => row.end_offset, numeric: true },
    { title: "Topic's end", cell: (row) => number(row.topic_end_offset), value: (row) => row.topic_end_offset, numeric: true, wide: true },
    { title: "Lag", cell: (row) => number(row.lag), value: (row) => row.lag, numeric: true },
  ];
  return html`<${Table} caption="Partitions" columns=${columns} rows=${table.partitions} rowKey=${(row) => row.partition} sort=${0} />`;
}

/** What a snapshot's summary says of its rows: `+1,000 −20`. */
function changeOf({ summary }) {
  const counted = (name, sign) => (Number(summary[name] ?? 0) > 0 ? `${sign}${number(Number(summary[name]))}` : "");
  return [counted("added-records", "+"), counted("deleted-records", "−")].filter(Boolean).join(" ") || "–";
}

const SNAPSHOT_COLUMNS = [
  { title: "Time", cell: (row) => html`<${Time} at_ms=${row.committed_ms} />` },
  { title: "Commit", cell: (row) => number(row.version), numeric: true, wide: true },
  { title: "Operation", cell: (row) => row.operation ?? "–" },
  { title: "Rows", cell: changeOf, numeric: true },
  { title: "Rows in all", cell: ({ summary }) => ("total-records" in summary ? number(Number(summary["total-records"])) : "–"), numeric: true, wide: true },
  { title: "Id", cell: (row) => html`<code>${row.snapshot_id}</code>`, wide: true },
];

function Snapshots({ table }) {
  const [limit, setLimit] = useState(ROWS);
  const poll = usePoll((signal) => api.snapshots(table.name, { limit }, signal), 0, [table.name, table.version, limit]);
  const found = useKept(poll.data, table.name);
  if (found === null) return html`<${Waiting} poll=${poll} />`;
  return html`
    <${PageError} error=${poll.error} retry=${poll.refresh} />
    ${found.snapshots.length > 0
      ? html`<${Table} caption="Snapshots" columns=${SNAPSHOT_COLUMNS} rows=${found.snapshots} rowKey=${(row) => row.version} />`
      : html`<${Empty} title="There are no snapshots." />`}
    ${found.more && html`<${More} what="snapshots" show=${() => setLimit(limit + ROWS)} />`}
  `;
}

const FILE_COLUMNS = [
  { title: "Partition", cell: (row) => row.partition },
  { title: "From", cell: (row) => number(row.start_offset), numeric: true },
  { title: "To", cell: (row) => number(row.end_offset), numeric: true },
  { title: "Rows", cell: (row) => number(row.rows), numeric: true },
  { title: "Size", cell: (row) => bytes(row.bytes), numeric: true, wide: true },
  { title: "Committed", cell: (row) => html`<${Time} at_ms=${row.committed_ms} />`, wide: true },
];

function Files({ table }) {
  const [partition, setPartition] = useState("");
  const [limit, setLimit] = useState(ROWS);
  const poll = usePoll((signal) => api.tableFiles(table.name, { partition, limit }, signal), 0, [table.name, table.version, partition, limit]);
  const found = useKept(poll.data, `${table.name} ${partition}`);
  const choices = [["", "all"], ...table.partitions.map((each) => [String(each.partition), String(each.partition)])];
  const rows = found?.files.filter((row) => partition === "" || row.partition === Number(partition)) ?? [];
  const isMore = found !== null && found.next !== null && (partition === "" || found.next.partition === Number(partition));
  return html`
    <div class="filter-form">
      <${Choice} label="Partition" choices=${choices} value=${partition} onChange=${(event) => setPartition(event.target.value)} />
    </div>
    ${found === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          ${rows.length > 0
            ? html`<${Table} caption="Files" columns=${FILE_COLUMNS} rows=${rows} rowKey=${(row) => `${row.partition} ${row.start_offset}`} />`
            : html`<${Empty} title="There are no files." />`}
          ${isMore && html`<${More} what="files" show=${() => setLimit(limit + ROWS)} />`}
        `}
  `;
}

function More({ what, show }) {
  return html`<p class="more"><button type="button" class="small" onClick=${show}>${`Show ${ROWS} more ${what}`}</button></p>`;
}

/** Hook: the newest data that is not null, of one thing: a list does not vanish while a longer one is loaded. */
function useKept(data, of) {
  const [kept, setKept] = useState({ of, data });
  useEffect(() => {
    if (data !== null) setKept({ of, data });
  }, [data, of]);
  return data ?? (kept.of === of ? kept.data : null);
}
