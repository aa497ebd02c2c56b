// The list of groups.
import { api } from "../api.js";
import { Command, Empty, Name, PageHead, State, Unreachable, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { firstGroup } from "../commands.js";
import { count, number } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";

/** Kinds of the states of groups, of both protocols. */
export const groupKind = (state) =>
  ({ stable: "good", empty: "off", dead: "bad" })[state.toLowerCase()] ?? "warn";

const TOPICS_SHOWN = 3;

const COLUMNS = [
  { title: "Group", cell: (row) => html`<a href=${href(["groups", row.group_id])}><${Name} text=${row.group_id} /></a>`, value: (row) => row.group_id },
  { title: "State", cell: (row) => html`<${State} kind=${groupKind(row.state)}>${row.state}<//>`, value: (row) => row.state },
  { title: "Members", cell: (row) => number(row.members), value: (row) => row.members, numeric: true },
  { title: "Lag", cell: (row) => number(row.lag), value: (row) => row.lag, numeric: true },
  {
    title: "Topics",
    cell: (row) =>
      row.topics.length > TOPICS_SHOWN
        ? `${row.topics.slice(0, TOPICS_SHOWN).join(", ")} and ${row.topics.length - TOPICS_SHOWN} more`
        : row.topics.join(", ") || "–",
    wide: true,
  },
  { title: "Protocol", cell: (row) => row.type, value: (row) => row.type, wide: true },
  { title: "Coordinator", cell: (row) => `node ${row.coordinator}`, value: (row) => row.coordinator, wide: true },
];

export function GroupsPage({ query }) {
  const poll = usePoll((signal) => api.groups(signal), 5_000, []);
  const search = query.search ?? "";
  const rows = (poll.data?.groups ?? []).filter((row) => row.group_id.toLowerCase().includes(search.toLowerCase()));
  return html`
    <${PageHead} title="Groups" />
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${Unreachable} nodes=${poll.data.unreachable} />
          <div class="filters" role="search">
            <input type="search" data-key="/" placeholder="Search by name" aria-label="Search groups by name" value=${search}
              onInput=${(event) => go(["groups"], { search: event.target.value }, { replace: true })} />
            <span class="note" role="status">${count(rows.length, "group")}${poll.data.more ? ", the list is cut" : ""}</span>
          </div>
          ${rows.length > 0
            ? html`<${Table} caption="Groups" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.group_id} sort=${0} />`
            : search
              ? html`<${Empty} title=${`No group's name contains “${search}”.`} />`
              : html`<${Empty} title="There are no groups yet.">
                  <p>Read a topic as a group, until Ctrl-C:</p>
                  <${Command} text=${firstGroup("greetings")} />
                <//>`}
        `}
  `;
}
