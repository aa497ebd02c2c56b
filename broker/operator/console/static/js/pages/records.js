// Records of a topic: from an offset or a time, filtered, or as they arrive. The filters are in the address.
import { api } from "../api.js";
import { Command, Empty, isMissing, PageError, PageHead, Unreachable, Waiting } from "../components/basics.js";
import { firstRecord } from "../commands.js";
import { count, number } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate, useStore } from "../store.js";
import { ProduceRecord } from "./produce.js";
import { RecordFilters, filtersOf, requestOf } from "./record_filters.js";
import { RecordList, recordKey } from "./record_list.js";
import { useTail } from "./tail.js";

export function RecordsPage({ topic, query }) {
  const [produces, setProduces] = useState(false);
  const mayOperate = useMayOperate();
  const info = usePoll((signal) => api.topic(topic, signal), 0, [topic]);
  const partitions = info.data?.partitions.map((partition) => partition.index) ?? [];
  const produced = ({ partition, offset }) => {
    setProduces(false);
    notify(`The record is at offset ${number(offset)} of partition ${partition}.`);
    document.dispatchEvent(new CustomEvent("console:refresh"));
  };
  return html`
    <${PageHead} title="Records" crumbs=${[["Topics", href(["topics"])], [topic, href(["topics", topic])]]}>
      ${mayOperate &&
      html`<button type="button" data-key="n" disabled=${info.data === null} onClick=${() => setProduces(true)}>Produce a record</button>`}
    <//>
    ${isMissing(info)
      ? html`<${Waiting} poll=${info} missing=${html`<p><a href=${href(["topics"])}>All topics</a></p>`} />`
      : html`
          <${PageError} error=${info.error} retry=${info.refresh} />
          <${Records} topic=${topic} query=${query} partitions=${partitions} />
        `}
    ${produces && html`<${ProduceRecord} topic=${topic} partitions=${partitions} close=${() => setProduces(false)} done=${produced} />`}
  `;
}

/** The filters, and the records that they select. */
function Records({ topic, query, partitions }) {
  const mayRead = useStore((state) => state.session.may_read_records);
  const filters = filtersOf(query);
  const isLive = query.live === "true";
  const apply = (changed) => go(["topics", topic, "records"], changed);
  if (!mayRead) {
    return html`<${Empty} title="You may not see records here."><p>The node's setting <code>admin.records</code> says who may.</p><//>`;
  }
  return html`
    <${RecordFilters} filters=${filters} isLive=${isLive} partitions=${partitions} apply=${apply} />
    ${isLive
      ? html`<${Tail} key=${`live ${JSON.stringify(query)}`} topic=${topic} filters=${filters} />`
      : html`<${Browse} key=${`browse ${JSON.stringify(query)}`} topic=${topic} filters=${filters} />`}
  `;
}

/** Pages of records that are there. */
function Browse({ topic, filters }) {
  const [older, setOlder] = useState({ records: [], next: null, end: true, scanned: 0, error: null, busy: false });
  const first = usePoll((signal) => api.records(topic, requestOf(filters), signal), 0, [topic, filters]);
  const answer = first.data;
  useEffect(() => {
    if (answer) setOlder({ records: [], next: answer.next, end: answer.end, scanned: answer.scanned, error: null, busy: false });
  }, [answer]);

  const loadMore = async () => {
    setOlder((now) => ({ ...now, busy: true, error: null }));
    try {
      const more = await api.records(topic, { ...requestOf(filters), from: nextText(older.next) });
      setOlder((now) => ({
        records: [...now.records, ...more.records],
        next: more.next,
        end: more.end,
        scanned: now.scanned + more.scanned,
        error: null,
        busy: false,
      }));
    } catch (error) {
      setOlder((now) => ({ ...now, error, busy: false }));
    }
  };
  if (first.error) return html`<${PageError} error=${first.error} retry=${first.refresh} />`;
  if (answer === null) return html`<p class="waiting" role="status">Loading …</p>`;
  const seen = new Set();
  const records = [...answer.records, ...older.records].filter((record) => {
    const key = recordKey(record);
    return !seen.has(key) && seen.add(key);
  });
  if (filters.from === "latest") records.sort((a, b) => b.timestamp_ms - a.timestamp_ms || b.offset - a.offset);
  return html`
    <${Unreachable} nodes=${answer.unreachable} />
    ${answer.errors.map((text) => html`<p class="warning-line" role="status">${text}</p>`)}
    ${answer.more_partitions && html`<p class="warning-line">The topic has more partitions than are read at once: choose one.</p>`}
    <p class="note" role="status">
      ${count(records.length, "record")}, ${number(older.scanned)} looked at.${filters.from === "latest" ? " The newest come first." : ""}
    </p>
    ${records.length > 0
      ? html`<${RecordList} topic=${topic} records=${records} />`
      : html`<${NoRecords} topic=${topic} filters=${filters} isEnd=${older.end} />`}
    <${PageError} error=${older.error} retry=${loadMore} />
    ${!older.end &&
    html`<p class="more"><button type="button" onClick=${loadMore} disabled=${older.busy}>
      ${older.busy ? "Loading …" : "Look further"}
    </button></p>`}
  `;
}

/** Return `next` of an answer as the parameter `from` of the following request. */
const nextText = (next) => `offsets:${Object.entries(next).map(([partition, offset]) => `${partition}=${offset}`).join(",")}`;

function NoRecords({ topic, filters, isEnd }) {
  const isFiltered = filters.contains || filters.key;
  if (isFiltered && !isEnd) return html`<${Empty} title="No match so far."><p>There is more to look at: look further.</p><//>`;
  if (isFiltered) return html`<${Empty} title="No record matches."><p>Start earlier, or change the filters.</p><//>`;
  return html`
    <${Empty} title="There is no record here.">
      <p>Send one:</p>
      <${Command} text=${firstRecord(topic)} />
    <//>
  `;
}

function tailState({ isPaused, isOpen, received }) {
  if (isPaused) return "paused";
  if (!isOpen) return "connecting";
  return received > 0 ? "live" : "live, no records yet";
}

/** Records as they arrive. */
function Tail({ topic, filters }) {
  const tail = useTail(topic, requestOf(filters));
  return html`
    <div class="tail-bar">
      <button type="button" data-key="p" class=${tail.isPaused ? "primary" : ""} aria-pressed=${tail.isPaused} onClick=${tail.togglePause}>
        ${tail.isPaused ? "Continue" : "Pause"}
      </button>
      <span class="state ${tail.isPaused ? "off" : tail.isOpen ? "good" : "warn"}">
        <span class="mark" aria-hidden="true"></span>${tailState(tail)}
      </span>
      ${tail.received + tail.held > 0 &&
      html`<span class="note">
        ${count(tail.received, "record")} received${tail.held > 0 ? `, ${number(tail.held)} held back while paused` : ""}${tail.dropped > 0
          ? `, the oldest ${number(tail.dropped)} no longer shown`
          : ""}
      </span>`}
    </div>
    <${PageError} error=${tail.error} />
    ${tail.records.length > 0
      ? html`<${RecordList} topic=${topic} records=${tail.records} />`
      : html`<${Empty} title="Waiting for the next record.">
          <p>Send one:</p>
          <${Command} text=${firstRecord(topic)} />
        <//>`}
  `;
}
