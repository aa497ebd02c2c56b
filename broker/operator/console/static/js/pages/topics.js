// The list of topics, with search and sorting, and creation.
import { api } from "../api.js";
import { Command, Empty, Name, PageHead, State, Unreachable, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { firstRecord } from "../commands.js";
import { bytes, count, duration, number, perSecond } from "../format.js";
import { html, useState } from "../html.js";
import { growthOf, useLastTwo, usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { CreateTopic } from "./topic_changes.js";

/** Return whether no record of a topic is ever deleted for its age. */
const isKept = (topic) => topic.retention_ms < 0 || !topic.cleanup_policy.includes("delete");

export function TopicsPage({ query }) {
  const poll = usePoll((signal) => api.topics(signal), 5_000, []);
  const answers = useLastTwo(poll.data);
  const byName = answers.map(({ at_ms, data }) => ({ at_ms, data: new Map(data.topics.map((topic) => [topic.name, topic])) }));
  const rateOf = (topic) => growthOf(byName, (topics) => topics.get(topic.name)?.end_offsets ?? null);
  const [creates, setCreates] = useState(false);
  const mayOperate = useMayOperate();
  const search = query.search ?? "";
  const showInternal = query.internal === "true";
  const change = (changes) => go(["topics"], { ...query, ...changes }, { replace: true });

  const all = poll.data?.topics ?? [];
  const rows = all.filter((topic) => (showInternal || !topic.internal) && topic.name.toLowerCase().includes(search.toLowerCase()));
  const internal = all.filter((topic) => topic.internal).length;
  const created = (topic) => {
    notify(`Topic ${topic.name} is created.`);
    go(["topics", topic.name]);
  };
  return html`
    <${PageHead} title="Topics">
      ${mayOperate && html`<button type="button" class="primary" data-key="n" onClick=${() => setCreates(true)}>Create a topic</button>`}
    <//>
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${Unreachable} nodes=${poll.data.unreachable} />
          <div class="filters" role="search">
            <input type="search" data-key="/" placeholder="Search by name" aria-label="Search topics by name"
              value=${search} onInput=${(event) => change({ search: event.target.value })} />
            <label class="check">
              <input type="checkbox" checked=${showInternal} onChange=${(event) => change({ internal: event.target.checked ? "true" : "" })} />
              Internal topics (${internal})
            </label>
            <span class="note" role="status">${count(rows.length, "topic")}${poll.data.more ? ", the list is cut" : ""}</span>
          </div>
          ${rows.length > 0
            ? html`
                <${Table} caption="Topics" columns=${columnsOf(rateOf)} rows=${rows} rowKey=${(topic) => topic.name} sort=${0} />
                <p class="note">
                  Offsets from start to end: there are no more records than that, but there may be fewer, as compaction removes some,
                  and transactions write markers.
                </p>
              `
            : html`<${NoTopics} search=${search} mayOperate=${mayOperate} />`}
        `}
    ${creates && html`<${CreateTopic} close=${() => setCreates(false)} done=${created} />`}
  `;
}

/** Columns of the table. `rateOf(topic)`: records written in a second, or null. */
const columnsOf = (rateOf) => [
  {
    title: "Topic",
    cell: (topic) => html`
      <a href=${href(["topics", topic.name])}><${Name} text=${topic.name} /></a>
      ${topic.leaderless > 0 && html` <${State} kind="bad">${count(topic.leaderless, "partition")} without a leader<//>`}
    `,
    value: (topic) => topic.name,
  },
  { title: "Partitions", cell: (topic) => number(topic.partitions), value: (topic) => topic.partitions, numeric: true, wide: true },
  { title: "Offsets", cell: (topic) => number(topic.records), value: (topic) => topic.records, numeric: true },
  { title: "Written", cell: (topic) => perSecond(rateOf(topic)), value: rateOf, numeric: true, wide: true },
  { title: "Size", cell: (topic) => bytes(topic.bytes), value: (topic) => topic.bytes, numeric: true },
  { title: "Led by", cell: (topic) => (topic.leaders.length ? topic.leaders.join(", ") : "–"), wide: true },
  { title: "Clean-up", cell: (topic) => topic.cleanup_policy, value: (topic) => topic.cleanup_policy, wide: true },
  {
    title: "Kept for",
    cell: (topic) => (isKept(topic) ? "forever" : duration(topic.retention_ms)),
    value: (topic) => (isKept(topic) ? Infinity : topic.retention_ms),
    numeric: true,
    wide: true,
  },
  {
    title: "Browse",
    cell: (topic) => html`<a href=${href(["topics", topic.name, "records"])} aria-label=${`Records of ${topic.name}`}>records</a>`,
    wide: true,
  },
];

function NoTopics({ search, mayOperate }) {
  if (search) return html`<${Empty} title=${`No topic's name contains “${search}”.`} />`;
  return html`
    <${Empty} title="There are no topics yet.">
      <p>${mayOperate ? "Create one here, or send" : "Send"} a first record, which creates its topic:</p>
      <${Command} text=${firstRecord("greetings")} />
    <//>
  `;
}
