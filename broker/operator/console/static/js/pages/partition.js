// One partition: where its bytes are, and who writes to it.
import { api } from "../api.js";
import { Empty, Figures, isMissing, Name, PageHead, Section, State, Time, Unreachable, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { ago, bytes, number, replicaText } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { OffsetMap } from "./offset_map.js";

/** The places of records, in the order of their way: [kind, name, what it is]. */
export const PLACES = [
  ["wal", "Log", "write-ahead log: durable, not yet in an object"],
  ["log_cache", "Log cache", "memory: served without a read"],
  ["sso", "Stream set objects", "objects with records of many partitions"],
  ["so", "Stream objects", "objects of this partition alone"],
];

export function PartitionPage({ topic, partition }) {
  const poll = usePoll((signal) => api.partitionStorage(topic, partition, signal), 3_000, [topic, partition]);
  const crumbs = [["Topics", href(["topics"])], [topic, href(["topics", topic])]];
  const found = isMissing(poll) ? null : poll.data;
  const isLarge = matchMedia("(min-width: 1200px)").matches;
  const runs = found ? [...found.wal, ...found.log_cache, ...found.objects] : [];
  return html`
    <${PageHead} title=${`Partition ${partition}`} crumbs=${crumbs}>
      ${!isMissing(poll) && html`<a class="button" href=${href(["topics", topic, "records"], { partition })}>Browse records</a>`}
    <//>
    ${found === null
      ? html`<${Waiting} poll=${poll} missing=${html`<p><a href=${href(["topics"])}>All topics</a></p>`} />`
      : html`
          <${Unreachable} nodes=${found.unreachable} />
          <${Summary} storage=${found} runs=${runs} />
          <${Section} id="bytes" title="Where the bytes are"
            note="Offsets from left to right, drawn to scale. A record is in the log first, and in its cache; then in an object of many partitions; after compaction in one of its own.">
            ${found.end_offset > found.start_offset
              ? html`<${OffsetMap} storage=${found} runs=${runs} places=${PLACES} />`
              : html`<${Empty} title="The partition has no records." />`}
          <//>
          ${runs.length > 0 &&
          html`<details class="as-table" open=${isLarge}><summary>The same as a table</summary><${Runs} runs=${runs} /></details>`}
          <${Section} id="producers" title="Producers" note="Producers with sequence numbers, as this partition remembers them.">
            <${Producers} topic=${topic} partition=${partition} />
          <//>
        `}
  `;
}

function Summary({ storage, runs }) {
  const held = (kind) => runs.filter((run) => run.kind === kind).reduce((sum, run) => sum + run.bytes, 0);
  return html`
    <${Figures}
      items=${[
        ["Offsets", `${number(storage.start_offset)} to ${number(storage.end_offset)}`],
        ["In objects up to", number(storage.committed_offset)],
        ...(storage.replicas.length > 0 ? [["Replicas", replicaText(storage.replicas), "one that follows has the newest records, too"]] : []),
        ...PLACES.map(([kind, name]) => [name, bytes(held(kind))]),
      ]}
    />
  `;
}

const placeName = (kind) => PLACES.find((place) => place[0] === kind)?.[1] ?? kind;

function Runs({ runs }) {
  const columns = [
    { title: "Place", cell: (run) => placeName(run.kind), value: (run) => PLACES.findIndex((place) => place[0] === run.kind) },
    { title: "From offset", cell: (run) => number(run.base_offset), value: (run) => run.base_offset, numeric: true },
    { title: "To offset", cell: (run) => number(run.end_offset), value: (run) => run.end_offset, numeric: true },
    { title: "Size", cell: (run) => bytes(run.bytes), value: (run) => run.bytes, numeric: true },
    { title: "Object", cell: (run) => (run.object_id === null ? "–" : html`<code><${Name} text=${run.key ?? run.object_id} /></code>`), wide: true },
    { title: "Committed", cell: (run) => html`<${Time} at_ms=${run.committed_ms} />`, value: (run) => run.committed_ms, numeric: true, wide: true },
  ];
  return html`<${Table} caption="Where the bytes are" columns=${columns} rows=${runs} sort=${0}
    rowKey=${(run) => `${run.kind} ${run.base_offset} ${run.object_id}`} />`;
}

const PRODUCER_COLUMNS = [
  { title: "Producer id", cell: (row) => row.producer_id, value: (row) => row.producer_id },
  { title: "Epoch", cell: (row) => row.epoch, value: (row) => row.epoch, numeric: true, wide: true },
  { title: "Last sequence", cell: (row) => number(row.last_sequence), value: (row) => row.last_sequence, numeric: true, wide: true },
  { title: "Last record", cell: (row) => ago(row.last_timestamp_ms), value: (row) => row.last_timestamp_ms, numeric: true },
  {
    title: "Transaction",
    cell: (row) =>
      row.transaction_start_offset === null
        ? "–"
        : html`<${State} kind="warn">open since offset ${number(row.transaction_start_offset)}<//>`,
  },
];

function Producers({ topic, partition }) {
  const poll = usePoll((signal) => api.producers(topic, partition, signal), 5_000, [topic, partition]);
  if (poll.data === null) return html`<${Waiting} poll=${poll} />`;
  const { producers } = poll.data;
  if (producers.length === 0) return html`<${Empty} title="No idempotent or transactional producer has written here lately." />`;
  return html`<${Table} caption="Producers" columns=${PRODUCER_COLUMNS} rows=${producers} rowKey=${(row) => row.producer_id} sort=${0} />`;
}
