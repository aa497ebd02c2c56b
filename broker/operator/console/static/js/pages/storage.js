// Storage of the node that is asked: the log's ring, memory, uploads and compaction as they happen, calls to its store.
import { api } from "../api.js";
import { Empty, Meter, PageHead, Section, State, Waiting } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { Table } from "../components/table.js";
import { bytes, bytesPerSecond, count, duration, number } from "../format.js";
import { html } from "../html.js";
import { differences, useLive } from "../live.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { Ring } from "./ring.js";

const INTERVAL_MS = 5_000;

export function StoragePage() {
  const poll = usePoll((signal) => api.storage(signal), INTERVAL_MS, []);
  const live = useLive();
  const storage = poll.data;
  return html`
    <${PageHead} title=${storage ? `Storage of node ${storage.node_id}` : "Storage"} />
    ${storage === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${Problems} storage=${storage} />
          <${Places} storage=${storage} sample=${live.samples.at(-1)} />
          <${Flow} live=${live} />
          <${Objects} objects=${storage.objects} uploads=${storage.uploads} />
          <${Calls} counted=${live.samples.at(-1)?.store_calls ?? storage.store_calls} />
        `}
  `;
}

function Problems({ storage }) {
  return html`
    ${storage.damaged_objects > 0 && html`<p class="error-line" role="alert">${count(storage.damaged_objects, "object")} cannot be read: see anabranch storage verify.</p>`}
    ${storage.stopped_streams > 0 && html`<p class="error-line" role="alert">${count(storage.stopped_streams, "stream")} stopped: see anabranch storage stopped.</p>`}
  `;
}

/** The log and the caches, from the newest sample, or from the answer until there is one. */
function Places({ storage, sample }) {
  const wal = sample?.wal ?? storage.wal;
  const cache = sample?.log_cache_bytes ?? storage.log_cache.bytes;
  const uncommitted = sample?.uncommitted_bytes ?? storage.log_cache.uncommitted_bytes;
  const uploads = sample?.uploads ?? storage.uploads;
  const blocks = sample?.block_cache_bytes ?? storage.block_cache.bytes;
  const reads = storage.block_cache.hits + storage.block_cache.misses;
  return html`
    <div class="storage-top">
      <section class="card ring-card" aria-labelledby="log">
        <h2 id="log">Write-ahead log</h2>
        <${Ring} wal=${wal} />
        <p class="note">
          Half of the records are durable within ${duration(wal.append_p50_us / 1000)}, 99 % within
          ${" "}${duration(wal.append_p99_us / 1000)}.
        </p>
      </section>
      <section class="card memory" aria-labelledby="memory">
        <h2 id="memory">On the way to objects</h2>
        <${Meter} label="Acknowledged, not in an object yet" value=${uncommitted} capacity=${storage.uploads.threshold_bytes}
          text=${`${bytes(uncommitted)}; an upload starts at ${bytes(storage.uploads.threshold_bytes)}, or after ${duration(storage.uploads.age_ms)}`} />
        <${Meter} label="Log cache: newest records, in memory" value=${cache} capacity=${storage.log_cache.capacity_bytes}
          text=${`${bytes(cache)} of ${bytes(storage.log_cache.capacity_bytes)}`} />
        <${Meter} label="Block cache: older records, read from objects" value=${blocks} capacity=${storage.block_cache.capacity_bytes}
          text=${`${bytes(blocks)} of ${bytes(storage.block_cache.capacity_bytes)}`} />
        <p class="note">
          ${reads > 0
            ? `${Math.round((100 * storage.block_cache.hits) / reads)} % of ${number(reads)} reads of blocks needed no call to the store.`
            : "No reader has needed an object since the node started."}
        </p>
      </section>
      <div class="storage-work">
        <section class="card" aria-labelledby="uploads">
          <h2 id="uploads">Uploads</h2>
          <p>${count(uploads.count, "upload")} with ${bytes(uploads.bytes)} since the node started.</p>
          ${uploads.retries > 0 && html`<p><${State} kind="warn">${count(uploads.retries, "retry", "retries")}<//></p>`}
        </section>
        <section class="card" aria-labelledby="compaction">
          <h2 id="compaction">Compaction</h2>
          <${CompactionState} compaction=${{ ...storage.compaction, ...(sample?.compaction ?? {}) }} />
        </section>
      </div>
    </div>
  `;
}

function Flow({ live }) {
  const { samples, problem } = live;
  const times = samples.slice(1).map((sample) => sample.at_ms);
  return html`
    <${Section} id="flow" title="As it happens" note="Since this page was opened, at most ten minutes.">
      ${problem && html`<p class="warning-line" role="status">${problem}</p>`}
      <div class="charts">
        <${Chart} label="Into the store, and out of it" times_ms=${times} format=${bytesPerSecond} isBytes
          series=${[
            { label: "written", values: differences(samples, (sample) => sample.store_calls.bytes_written) },
            { label: "read", values: differences(samples, (sample) => sample.store_calls.bytes_read) },
          ]} />
        <${Chart} label="Log in use" times_ms=${times} format=${bytes} isBytes
          series=${[
            { label: "log", values: samples.slice(1).map((sample) => sample.wal.used_bytes) },
            { label: "not in an object", values: samples.slice(1).map((sample) => sample.uncommitted_bytes) },
          ]} />
      </div>
    <//>
  `;
}

function CompactionState({ compaction }) {
  const { running, progress } = compaction;
  const summary = compaction.objects_in
    ? `${count(compaction.objects_in, "object")} became ${number(compaction.objects_out)} since the node started.`
    : "No object has been compacted since the node started.";
  if (!running) return html`<p><${State} kind="off">waits for its next run<//></p><p class="note">${summary}</p>`;
  return html`
    <p><${State} kind="good">at work: ${progress?.stage ?? "planning"}<//></p>
    ${progress !== null &&
    html`<${Meter} label="This stage" value=${progress.done_bytes} capacity=${progress.total_bytes}
      text=${`${bytes(progress.done_bytes)} of ${bytes(progress.total_bytes)}`} />`}
    <p class="note">${summary}</p>
  `;
}

const KINDS = { SSO: ["Stream set objects", "of many partitions"], SO: ["Stream objects", "of one partition each"] };

const OBJECT_COLUMNS = [
  { title: "Objects", cell: ({ kind }) => html`${KINDS[kind]?.[0] ?? kind} <small>${KINDS[kind]?.[1]}</small>`, value: (row) => row.kind },
  { title: "State", cell: (row) => row.state, value: (row) => row.state },
  { title: "Count", cell: (row) => number(row.count), value: (row) => row.count, numeric: true },
  { title: "Size", cell: (row) => bytes(row.bytes), value: (row) => row.bytes, numeric: true },
];

/** Objects of the cluster. The API's names are a kind and a state: `SSO committed`. */
function Objects({ objects, uploads }) {
  const rows = Object.entries(objects ?? {}).map(([name, found]) => {
    const [kind, ...state] = name.split(" ");
    return { kind, state: state.join(" "), ...found };
  });
  return html`
    <${Section} id="objects" title="Objects of the cluster" note="A partition's page shows which of its records are in which.">
      ${objects === null
        ? html`<p class="warning-line">The catalog does not answer: the objects are not known now.</p>`
        : rows.length > 0
          ? html`<${Table} caption="Objects" columns=${OBJECT_COLUMNS} rows=${rows} rowKey=${(row) => `${row.kind} ${row.state}`} />`
          : html`<${Empty} title="There are no objects yet."><p>
              The first upload starts ${duration(uploads.age_ms)} after the first record, or once ${bytes(uploads.threshold_bytes)} wait.
            </p><//>`}
    <//>
  `;
}

/** Kinds of calls that a store counts, as it names them, and what they are. The other counters are no calls. */
const CALLS = {
  put: "PUT",
  part: "Upload of a part",
  part_copy: "Copy of a part",
  multipart: "Start and end of a multipart upload",
  get: "GET",
  head: "HEAD",
  list: "LIST",
  delete: "DELETE",
};

function Calls({ counted }) {
  const columns = [
    { title: "Call", cell: (call) => CALLS[call] },
    { title: "Since the start", cell: (call) => number(counted[call]), numeric: true },
  ];
  const rows = Object.keys(CALLS).filter((call) => counted[call] > 0);
  return html`
    <${Section} id="calls" title="Calls to the store" note="Calls of this node.">
      <${Table} caption="Calls to the store" columns=${columns} rows=${rows} rowKey=${(call) => call} />
      <p class="note"><a href=${href(["cost"])}>Cost</a> has what a month of the cluster costs.</p>
    <//>
  `;
}
