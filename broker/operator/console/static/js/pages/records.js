// Records of a topic: from an offset or a time, filtered, or as they arrive. The filters are in the address.
import { api } from "../api.js";
import { Command, Empty, isMissing, PageError, PageHead, Unreachable, Waiting } from "../components/basics.js";
import { firstRecord } from "../commands.js";
import { decodersOf } from "../decoders.js";
import { bytes, count, number } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate, useStore } from "../store.js";
import { ProduceRecord } from "./produce.js";
import { RecordFilters, filtersOf, isCondition, requestOf, tailOf } from "./record_filters.js";
import { RecordList, saveRecords } from "./record_list.js";
import { SHOWN_MAX, useSearch } from "./record_search.js";
import { useTail } from "./tail.js";

export function RecordsPage({ topic, query }) {
  const [produces, setProduces] = useState(null); // {original}: a record that is produced again
  const mayOperate = useMayOperate();
  const info = usePoll((signal) => api.topic(topic, signal), 0, [topic]);
  const partitions = info.data?.partitions.map((partition) => partition.index) ?? [];
  const produced = ({ partition, offset }) => {
    setProduces(null);
    notify(`The record is at offset ${number(offset)} of partition ${partition}.`);
    document.dispatchEvent(new CustomEvent("console:refresh"));
  };
  return html`
    <${PageHead} title="Records" crumbs=${[["Topics", href(["topics"])], [topic, href(["topics", topic])]]}>
      ${mayOperate &&
      html`<button type="button" data-key="n" disabled=${info.data === null} onClick=${() => setProduces({ original: null })}>Produce a record</button>`}
    <//>
    ${isMissing(info)
      ? html`<${Waiting} poll=${info} missing=${html`<p><a href=${href(["topics"])}>All topics</a></p>`} />`
      : html`
          <${PageError} error=${info.error} retry=${info.refresh} />
          <${Records} topic=${topic} query=${query} partitions=${partitions} produceAgain=${(original) => setProduces({ original })} />
        `}
    ${produces &&
    html`<${ProduceRecord} topic=${topic} partitions=${partitions} original=${produces.original} close=${() => setProduces(null)} done=${produced} />`}
  `;
}

/** The filters, and the records that they select. */
function Records({ topic, query, partitions, produceAgain }) {
  const mayRead = useStore((state) => state.session.may_read_records);
  const filters = filtersOf(query, decodersOf(topic));
  const isLive = query.live === "true";
  const apply = (changed) => go(["topics", topic, "records"], changed);
  if (!mayRead) {
    return html`<${Empty} title="You may not see records here."><p>The node's setting <code>admin.records</code> says who may.</p><//>`;
  }
  return html`
    <${RecordFilters} topic=${topic} filters=${filters} isLive=${isLive} partitions=${partitions} apply=${apply} />
    ${isLive
      ? html`<${Tail} key=${`live ${JSON.stringify(query)}`} topic=${topic} filters=${filters} produceAgain=${produceAgain} />`
      : html`<${Browse} key=${`browse ${JSON.stringify(query)}`} topic=${topic} filters=${filters} produceAgain=${produceAgain} />`}
  `;
}

/** Pages of records that are there. */
function Browse({ topic, filters, produceAgain }) {
  const isSearch = isCondition(filters);
  const isNewest = filters.from === "latest";
  const search = useSearch(topic, requestOf(filters), isSearch);
  const { records, isBusy, end } = search;
  const byTime = (a, b) => a.timestamp_ms - b.timestamp_ms || a.partition - b.partition || a.offset - b.offset;
  const sorted = records.toSorted((a, b) => (isNewest ? byTime(b, a) : byTime(a, b)));
  const isFull = records.length >= SHOWN_MAX;
  const moreText = isSearch ? "Search further" : isNewest ? "Older records" : "More records";
  return html`
    <${Unreachable} nodes=${search.unreachable} />
    ${search.errors.map((text) => html`<p class="warning-line" role="status">${text}</p>`)}
    ${search.more_partitions && html`<p class="warning-line">The topic has more partitions than are read at once: choose one.</p>`}
    <${Progress} search=${search} isSearch=${isSearch} isNewest=${isNewest} save=${() => saveRecords(topic, sorted)} />
    ${records.length > 0
      ? html`<${RecordList} topic=${topic} records=${sorted} produceAgain=${produceAgain} />`
      : !isBusy && !search.error && html`<${NoRecords} topic=${topic} filters=${filters} isEnd=${end} />`}
    <${PageError} error=${search.error} retry=${search.more} />
    ${isFull && !end && html`<p class="note">No more than ${count(SHOWN_MAX, "record")} are shown: narrow the filters, or start elsewhere.</p>`}
    ${!end && !isFull && !search.error && records.length + search.scanned > 0 && !(isBusy && isSearch) &&
    html`<p class="more"><button type="button" onClick=${search.more} aria-disabled=${isBusy}>${isBusy ? "Loading …" : moreText}</button></p>`}
  `;
}

/** What was found so far, how far a search has come, and a way to stop it. */
function Progress({ search, isSearch, isNewest, save }) {
  const { records, scanned, remaining, isBusy } = search;
  const total = scanned + remaining;
  if (isBusy && search.next === null && !isSearch) return html`<p class="waiting" role="status">Loading …</p>`;
  return html`
    <div class="search-bar">
      ${isSearch &&
      isBusy &&
      html`
        <progress max=${total || 1} value=${total ? scanned : undefined} aria-label="Records looked at"></progress>
        <button type="button" class="small" onClick=${search.stop}>Stop</button>
      `}
      <p class="note" role="status">
        ${count(records.length, "record")}${isSearch && html`, ${number(scanned)} of about ${number(total)} looked at (${bytes(search.read_bytes)} read)`}.
        ${search.isStopped && " Stopped."}${isNewest && records.length > 0 && " The newest come first."}
      </p>
      ${records.length > 0 && !isBusy && html`<button type="button" class="small" onClick=${save}>Download these</button>`}
    </div>
  `;
}

function NoRecords({ topic, filters, isEnd }) {
  const isLimited = isCondition(filters) || filters.since || filters.until;
  if (!isEnd) return html`<${Empty} title="No match so far."><p>There is more to look at: search further.</p><//>`;
  if (isLimited) return html`<${Empty} title="No record matches."><p>Change the filters.</p><//>`;
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
function Tail({ topic, filters, produceAgain }) {
  const tail = useTail(topic, tailOf(filters));
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
      ? html`<${RecordList} topic=${topic} records=${tail.records} produceAgain=${produceAgain} />`
      : html`<${Empty} title="Waiting for the next record.">
          <p>Send one:</p>
          <${Command} text=${firstRecord(topic)} />
        <//>`}
  `;
}
