// One group: its members, and its lag by partition with a curve for as long as the page is open.
import { api } from "../api.js";
import { Empty, Figures, isMissing, Name, PageHead, Section, State, Unreachable, Waiting } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { Table } from "../components/table.js";
import { number } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { DeleteGroup, ResetGroup } from "./group_changes.js";
import { groupKind } from "./groups.js";

const INTERVAL_MS = 2_000;
const POINTS_MAX = 900;
/** Curves of a chart at most; the partitions with the largest lag have one. */
const CURVES_MAX = 5;

const nameOf = ({ topic, partition }) => `${topic} ${partition}`;

export function GroupPage({ group }) {
  const poll = usePoll((signal) => api.group(group, signal), INTERVAL_MS, [group]);
  const [history, setHistory] = useState([]);
  const [dialog, setDialog] = useState(null);
  const mayOperate = useMayOperate();
  const found = isMissing(poll) ? null : poll.data;
  useEffect(() => {
    if (found === null) return;
    const lags = Object.fromEntries(found.offsets.map((row) => [nameOf(row), row.lag]));
    setHistory((old) => [...old.slice(1 - POINTS_MAX), { at_ms: Date.now(), total: found.lag, lags }]);
  }, [found]);

  const close = () => setDialog(null);
  const afterReset = (answer) => {
    close();
    notify(`The offsets of ${answer.changes.length} partitions are reset.`);
    poll.refresh();
  };
  const deleted = () => {
    notify(`Group ${group} is deleted.`);
    go(["groups"]);
  };
  return html`
    <${PageHead} title=${group} crumbs=${[["Groups", href(["groups"])]]}>
      ${mayOperate &&
      found &&
      html`
        ${found.type !== "share" && html`<button type="button" onClick=${() => setDialog("reset")}>Reset offsets</button>`}
        <button type="button" class="danger-quiet" onClick=${() => setDialog("delete")}>Delete</button>
      `}
    <//>
    ${found === null
      ? html`<${Waiting} poll=${poll} missing=${html`<p><a href=${href(["groups"])}>All groups</a></p>`} />`
      : html`
          <${Unreachable} nodes=${found.unreachable} />
          <${Figures}
            items=${[
              ["State", html`<${State} kind=${groupKind(found.state)}>${found.state}<//>`],
              ["Lag", number(found.lag)],
              ["Members", number(found.members.length)],
              ["Assignor", found.assignor || "–"],
              ["Coordinator", `node ${found.coordinator}`],
              ["Protocol", found.type],
            ]}
          />
          <${Section} id="lag" title="Lag over time" note="Offsets between those committed and the ends, since this page was opened.">
            <${LagChart} history=${history} offsets=${found.offsets} />
          <//>
          <${Section} id="offsets" title="Offsets"><${Offsets} rows=${found.offsets} members=${found.members} shared=${found.type === "share"} /><//>
          <${Section} id="members" title="Members"><${Members} rows=${found.members} isStreams=${found.topology !== null} /><//>
          ${found.topology !== null &&
          html`<${Section} id="topology" title="Topology"><${Topology} rows=${found.topology} /><//>`}
        `}
    ${dialog === "reset" && html`<${ResetGroup} group=${found} close=${close} done=${afterReset} />`}
    ${dialog === "delete" && html`<${DeleteGroup} group=${group} close=${close} done=${deleted} />`}
  `;
}

function LagChart({ history, offsets }) {
  if (offsets.length === 0) return html`<${Empty} title="The group has committed no offsets yet." />`;
  const names = offsets
    .toSorted((a, b) => (b.lag ?? -1) - (a.lag ?? -1))
    .slice(0, CURVES_MAX)
    .map(nameOf)
    .sort();
  const times = history.map((point) => point.at_ms);
  const format = (value) => number(Math.round(value));
  const total = [{ label: "total", values: history.map((point) => point.total ?? null) }];
  const each = names.map((name) => ({ label: name, values: history.map((point) => point.lags[name] ?? null) }));
  return html`
    <div class="charts">
      <${Chart} label="Lag" times_ms=${times} series=${total} format=${format} />
      ${offsets.length > 1 && html`<${Chart} label="By partition" times_ms=${times} series=${each} format=${format} />`}
    </div>
  `;
}

/** How far a group has come in a partition, as a bar. */
function Progress({ row }) {
  if (row.committed === null || row.end_offset === null || row.start_offset === null) return "–";
  const all = row.end_offset - row.start_offset;
  const done = all > 0 ? Math.min(1, Math.max(0, (row.committed - row.start_offset) / all)) : 1;
  return html`
    <svg class="progress" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label=${`${Math.floor(done * 100)} percent read`}>
      <rect class="track" width="100" height="6" />
      <rect class="fill" width=${done * 100} height="6" />
    </svg>
  `;
}

/** Records that a share group was delivered; a dash while it does not read a partition. */
const SHARE_COLUMNS = [
  ["In flight", "in_flight"],
  ["Acquired", "acquired"],
  ["Dead letters due", "archiving"],
].map(([title, name]) => ({ title, cell: (row) => number(row.share?.[name]), value: (row) => row.share?.[name] ?? null, numeric: true }));

function Offsets({ rows, members, shared }) {
  const clients = new Map(members.map((member) => [member.member_id, member.client_id]));
  const columns = [
    {
      title: "Partition",
      cell: (row) => html`<a href=${href(["topics", row.topic, "partitions", row.partition])}><${Name} text=${nameOf(row)} /></a>`,
      value: nameOf,
    },
    { title: "Committed", cell: (row) => number(row.committed), value: (row) => row.committed, numeric: true },
    { title: "End", cell: (row) => number(row.end_offset), value: (row) => row.end_offset, numeric: true },
    { title: "Lag", cell: (row) => html`<b>${number(row.lag)}</b>`, value: (row) => row.lag, numeric: true },
    { title: "Read", cell: (row) => html`<${Progress} row=${row} />`, wide: true },
    { title: "Read by", cell: (row) => (row.member_id ? (clients.get(row.member_id) ?? row.member_id) : "nobody"), wide: true },
    ...(shared ? SHARE_COLUMNS : [{ title: "Metadata", cell: (row) => row.metadata || "–", wide: true }]),
  ];
  if (rows.length === 0) return html`<${Empty} title="The group has committed no offsets yet." />`;
  return html`<${Table} caption="Offsets" columns=${columns} rows=${rows} rowKey=${nameOf} sort=${0} />`;
}

const listed = (names) => names.join(", ") || "–";

/** Tasks of a member of a streams group: those that it works on, and the standby ones whose state it only keeps up. */
const TASKS = [
  { title: "Tasks", cell: ({ tasks }) => listed(tasks.active) },
  { title: "Standby", cell: ({ tasks }) => listed([...tasks.standby, ...tasks.warmup]) },
];

function Members({ rows, isStreams }) {
  const columns = [
    { title: "Client", cell: (row) => html`<${Name} text=${row.client_id} />`, value: (row) => row.client_id },
    { title: "Host", cell: (row) => html`<${Name} text=${row.host} />`, value: (row) => row.host },
    ...(isStreams ? TASKS : [{ title: "Reads", cell: (row) => row.assignments.map(nameOf).join(", ") || "nothing" }]),
    { title: "Instance", cell: (row) => row.instance_id ?? "–", wide: true },
    { title: "Member id", cell: (row) => html`<code>${row.member_id}</code>`, wide: true },
  ];
  if (rows.length === 0) {
    return html`<${Empty} title="The group has no members."><p>Its offsets stay until they expire or the group is deleted.</p><//>`;
  }
  return html`<${Table} caption="Members" columns=${columns} rows=${rows} rowKey=${(row) => row.member_id} sort=${0} />`;
}

/** Parts of a Kafka Streams application; a task is named by its subtopology and a partition. */
function Topology({ rows }) {
  const columns = [
    { title: "Subtopology", cell: (row) => row.subtopology, value: (row) => row.subtopology },
    { title: "Reads", cell: (row) => listed([...row.sources, ...row.repartition_sources]) },
    { title: "Repartitions to", cell: (row) => listed(row.repartition_sinks) },
    { title: "Keeps its state in", cell: (row) => listed(row.changelogs) },
  ];
  if (rows.length === 0) return html`<${Empty} title="No member has sent its topology yet." />`;
  return html`<${Table} caption="Topology" columns=${columns} rows=${rows} rowKey=${(row) => row.subtopology} sort=${0} />`;
}
