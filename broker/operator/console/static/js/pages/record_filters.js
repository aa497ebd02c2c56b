// The filters of the records page, and how they become a request.
import { Choice, Text } from "../components/filters.js";
import { AUTO, decodersOf, rememberDecoders } from "../decoders.js";
import { timeOfField } from "../format.js";
import { html, useEffect, useState } from "../html.js";

const STARTS = { latest: "Newest", earliest: "Oldest", offset: "From an offset" };
const DECODERS = {
  auto: "Detect",
  text: "Text",
  json: "JSON",
  avro: "Avro",
  protobuf: "Protobuf",
  int: "Integer",
  uuid: "UUID",
  hex: "Hex",
};
const LIMITS = [50, 100, 500];
const CONDITIONS = ["key", "contains", "header", "json"];
/** Filters that are shown on request, and where they are set. */
const FURTHER = ["header", "json", "decode", "decode_key", "limit"];

const isTime = (text) => !Number.isNaN(timeOfField(text));

/** Return the filters in the query of an address, with defaults for what is missing or makes no sense. `usual`: decoders. */
export function filtersOf(query, usual = AUTO) {
  const known = (name, choices, otherwise) => (Object.hasOwn(choices, query[name] ?? "") ? query[name] : otherwise);
  const isOffset = query.from === "offset" && /^\d{1,18}$/.test(query.at ?? "");
  return {
    partition: /^\d{1,9}$/.test(query.partition ?? "") ? query.partition : "",
    from: isOffset ? "offset" : query.from === "earliest" ? "earliest" : "latest",
    at: isOffset ? query.at : "",
    since: isTime(query.since) ? query.since : "",
    until: isTime(query.until) ? query.until : "",
    key: query.key ?? "",
    contains: query.contains ?? "",
    header: query.header ?? "",
    json: query.json ?? "",
    decode: known("decode", DECODERS, usual.decode),
    decode_key: known("decode_key", DECODERS, usual.decode_key),
    limit: LIMITS.includes(Number(query.limit)) ? query.limit : String(LIMITS[0]),
  };
}

/** Return whether records have to be searched for, as not all pass. */
export const isCondition = (filters) => CONDITIONS.some((name) => filters[name] !== "");

/** Return the query of a stream of records. */
export function tailOf({ partition, key, contains, header, json, decode, decode_key }) {
  return { partition, key, contains, header, json, decode, decode_key };
}

/** Return the query of a request for a page of records. */
export function requestOf(filters) {
  const { from, at, since, until, limit } = filters;
  return {
    ...tailOf(filters),
    from: from === "offset" ? `offset:${at}` : from,
    direction: from === "latest" ? "backward" : "forward",
    since_ms: since && timeOfField(since),
    until_ms: until && timeOfField(until),
    limit,
  };
}

/**
 * `apply(query)` is called with the whole new query, without defaults: by the button, or, where records are followed, as
 * soon as a filter has changed.
 */
export function RecordFilters({ topic, filters, isLive, partitions, apply }) {
  const [now, setNow] = useState(filters);
  const isFurther = FURTHER.some((name) => filters[name] !== filtersOf({})[name]);
  const [showsFurther, setShowsFurther] = useState(isFurther);
  useEffect(() => setNow(filters), [JSON.stringify(filters)]);
  useEffect(() => {
    if (isFurther) setShowsFurther(true);
  }, [isFurther]);
  const start = (live, wanted = now) => {
    const [defaults, former] = [filtersOf({}), filtersOf({}, decodersOf(topic))];
    rememberDecoders(topic, wanted);
    const changed = Object.entries(wanted).filter(([name, value]) => value !== defaults[name] || value !== former[name]);
    apply({ ...Object.fromEntries(changed), ...(live ? { live: "true" } : {}) });
  };
  const change = (name) => (event) => {
    const changed = { ...now, [name]: event.target.value };
    setNow(changed);
    if (isLive && event.type === "change") start(true, changed);
  };
  const choice = (name) => ({ value: now[name], onChange: change(name) });
  const text = (name) => ({ value: now[name], onInput: change(name), onChange: change(name) });
  const submit = (event) => {
    event.preventDefault();
    start(isLive);
    document.dispatchEvent(new CustomEvent("console:refresh"));
  };
  return html`
    <form class="filter-form" onSubmit=${submit} role="search" aria-label="Records">
      <div class="modes" role="group" aria-label="Mode">
        <button type="button" aria-pressed=${!isLive} onClick=${() => start(false)}>Browse</button>
        <button type="button" aria-pressed=${isLive} onClick=${() => start(true)}>Live</button>
      </div>
      ${!isLive &&
      html`
        <${Choice} label="Start" choices=${Object.entries(STARTS)} data-key="/" value=${now.from}
          onChange=${(event) => setNow({ ...now, from: event.target.value, at: "" })} />
        ${now.from === "offset" &&
        html`<label>Offset<input type="number" min="0" step="1" required value=${now.at} onInput=${change("at")} /></label>`}
      `}
      <${Choice} label="Partition" choices=${[["", "All"], ...partitions.map((index) => [String(index), index])]} ...${choice("partition")} />
      ${!isLive &&
      html`
        <label class="time">Since (UTC)<input type="datetime-local" step="1" value=${now.since} onInput=${change("since")} /></label>
        <label class="time">Until (UTC)<input type="datetime-local" step="1" value=${now.until} onInput=${change("until")} /></label>
      `}
      <${Text} label="Key is" ...${text("key")} />
      <${Text} label="Contains" ...${text("contains")} />
      ${showsFurther &&
      html`
        <${Text} label="Header" placeholder="name or name=value" ...${text("header")} />
        <${Text} label="JSON path" placeholder="$.items[*].sku == 'tea'" ...${text("json")} />
        <${Choice} label="Decode keys" choices=${Object.entries(DECODERS)} ...${choice("decode_key")} />
        <${Choice} label="Decode values" choices=${Object.entries(DECODERS)} ...${choice("decode")} />
        ${!isLive && html`<${Choice} label="Records" choices=${LIMITS.map((limit) => [String(limit), limit])} ...${choice("limit")} />`}
      `}
      <button type="button" aria-expanded=${showsFurther} onClick=${() => setShowsFurther(!showsFurther)}>
        ${showsFurther ? "Fewer filters" : "More filters"}
      </button>
      ${!isLive && html`<button type="submit" class="primary">Show</button>`}
    </form>
  `;
}
