// The newest audit events in the memory of the node that serves the page. The filters are in the address.
import { api } from "../api.js";
import { Empty, Name, PageError, PageHead, State, Time, Waiting } from "../components/basics.js";
import { Choice, FilterForm, Text, valuesOf } from "../components/filters.js";
import { Table } from "../components/table.js";
import { count, number } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { go } from "../router.js";
import { useMayOperate } from "../store.js";

const FILTERS = ["event", "principal", "operation", "resource", "outcome"];
/** Kinds of events, and of the marks beside them. */
const EVENTS = { changed: "good", "change refused": "warn", denied: "bad", "authentication failed": "bad", "records read": "off" };

export function AuditPage({ query }) {
  const mayOperate = useMayOperate();
  return html`
    <${PageHead} title="Audit log" />
    ${mayOperate ? html`<${Events} filters=${valuesOf(query, FILTERS)} />` : html`<${Empty} title="Only operators may see the audit log." />`}
  `;
}

function Events({ filters }) {
  const poll = usePoll((signal) => api.audit(filters, signal), 5_000, [filters]);
  const isFiltered = FILTERS.some((name) => filters[name] !== "");
  const found = poll.data;
  return html`
    <${FilterForm} label="Audit events" values=${filters} apply=${(values) => go(["audit"], values)} fields=${fields} />
    ${found === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <p class="note" role="status">
            ${found.more ? `The newest ${count(found.events.length, "event")}` : count(found.events.length, "event")} in the memory of node ${found.node_id}, which
            keeps the last 500 of each kind since its start. Its log has all, and other nodes have their own.
          </p>
          ${found.events.length > 0
            ? html`<${Table} caption="Audit events" columns=${COLUMNS} rows=${found.events} rowKey=${(row) => row.number} />`
            : html`<${Empty} title=${isFiltered ? "No event in memory passes these filters." : "Nothing was changed, denied or refused yet."} />`}
        `}
  `;
}

function fields(of) {
  return html`
    <${Choice} label="Event" choices=${[["", "All"], ...Object.keys(EVENTS).map((event) => [event, event])]} data-key="/" ...${of("event")} />
    <${Text} label="Principal" ...${of("principal")} />
    <${Text} label="Operation" ...${of("operation")} />
    <${Text} label="Resource" ...${of("resource")} />
    <${Text} label="Outcome" ...${of("outcome")} />
  `;
}

const named = (text) => (text === null ? "–" : html`<${Name} text=${text} />`);

const COLUMNS = [
  { title: "Time", cell: (row) => html`<${Time} at_ms=${row.at_ms} />`, wide: true },
  {
    title: "Event",
    cell: (row) => html`
      <${State} kind=${EVENTS[row.event] ?? "off"}>${row.event}<//>
      <small class="below narrow"><${Time} at_ms=${row.at_ms} /></small>
      <small class="below"><${Name} text=${[row.principal, row.host].filter(Boolean).join(" at ")} /></small>
      ${row.left_out > 0 && html`<small class="below">${number(row.left_out)} more before it were not recorded</small>`}
    `,
  },
  {
    title: "Operation",
    cell: (row) => html`${named(row.operation)}${row.resource && html`<small class="below"><${Name} text=${row.resource} /></small>`}`,
  },
  { title: "Outcome", cell: (row) => named(row.outcome), wide: true },
  { title: "Listener", cell: (row) => row.listener ?? "–", wide: true },
];
