// The filters of the records page, and how they become a request.
import { timeOfField } from "../format.js";
import { html, useEffect, useState } from "../html.js";

const STARTS = {
  latest: "Newest",
  earliest: "Oldest",
  offset: "From an offset",
  time: "From a time",
};
const DECODERS = { auto: "Detect", text: "Text", json: "JSON", avro: "Avro", protobuf: "Protobuf", hex: "Hex" };
const LIMITS = [50, 100, 500];

/** Return the filters in the query of an address, with defaults. */
export const filtersOf = (query) => ({
  partition: query.partition ?? "",
  from: query.from ?? "latest",
  at: query.at ?? "",
  key: query.key ?? "",
  contains: query.contains ?? "",
  decode: query.decode ?? "auto",
  limit: query.limit ?? String(LIMITS[0]),
});

/** Return the query of a request to the API. */
export function requestOf({ partition, from, at, key, contains, decode, limit }) {
  const start = { offset: `offset:${at}`, time: `time:${timeOfField(at)}` }[from] ?? from;
  return { partition, from: start, key, contains, decode, limit };
}

/**
 * `apply(query)` is called with the whole new query, without defaults: by the button, or, where records are followed, as
 * soon as a filter has changed.
 */
export function RecordFilters({ filters, isLive, partitions, apply }) {
  const [now, setNow] = useState(filters);
  useEffect(() => setNow(filters), [JSON.stringify(filters)]);
  const start = (live, wanted = now) => {
    const defaults = filtersOf({});
    const changed = Object.entries(wanted).filter(([name, value]) => value !== defaults[name]);
    apply({ ...Object.fromEntries(changed), ...(live ? { live: "true" } : {}) });
  };
  const set = (name) => (event) => {
    const changed = { ...now, [name]: event.target.value };
    setNow(changed);
    if (isLive && event.type === "change") start(true, changed);
  };
  const submit = (event) => {
    event.preventDefault();
    start(isLive);
    document.dispatchEvent(new CustomEvent("console:refresh"));
  };
  const needsValue = now.from === "offset" || now.from === "time";
  return html`
    <form class="record-filters" onSubmit=${submit} role="search" aria-label="Records">
      <div class="modes" role="group" aria-label="Mode">
        <button type="button" aria-pressed=${!isLive} onClick=${() => start(false)}>Browse</button>
        <button type="button" aria-pressed=${isLive} onClick=${() => start(true)}>Live</button>
      </div>
      ${!isLive &&
      html`
        <label>Start
          <select data-key="/" value=${now.from} onChange=${(event) => setNow({ ...now, from: event.target.value, at: "" })}>
            ${Object.entries(STARTS).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
          </select>
        </label>
        ${needsValue &&
        html`<label>${now.from === "offset" ? "Offset" : "Time (UTC)"}
          <input type=${now.from === "offset" ? "number" : "datetime-local"} min=${now.from === "offset" ? 0 : undefined}
            step="1" required value=${now.at} onInput=${set("at")} />
        </label>`}
      `}
      <label>Partition
        <select value=${now.partition} onChange=${set("partition")}>
          <option value="">All</option>
          ${partitions.map((index) => html`<option value=${String(index)}>${index}</option>`)}
        </select>
      </label>
      <label>Key is
        <input autocomplete="off" spellcheck=${false} value=${now.key} onInput=${set("key")} onChange=${set("key")} />
      </label>
      <label>Contains
        <input autocomplete="off" spellcheck=${false} value=${now.contains} onInput=${set("contains")} onChange=${set("contains")} />
      </label>
      <label>Decode
        <select value=${now.decode} onChange=${set("decode")}>
          ${Object.entries(DECODERS).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
        </select>
      </label>
      ${!isLive &&
      html`<label>Records
        <select value=${now.limit} onChange=${set("limit")}>
          ${LIMITS.map((limit) => html`<option value=${String(limit)}>${limit}</option>`)}
        </select>
      </label>`}
      ${!isLive && html`<button type="submit" class="primary">Show</button>`}
    </form>
  `;
}
