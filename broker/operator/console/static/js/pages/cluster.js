// The cluster and its nodes.
import { api } from "../api.js";
import { Empty, Figures, Name, PageError, PageHead, Section, State, Waiting } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { Table } from "../components/table.js";
import { rate, totals, useFigures } from "../figures.js";
import { bytes, bytesPerSecond, count, number, percent, perSecond, time } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { useMayOperate, useStore } from "../store.js";

const INTERVAL_MS = 2_000;
/** CPU time in ms that makes one core busy for a second. */
export const CORE_MS = 1_000;
/** Kinds of the states of nodes. */
export const NODE_KINDS = { up: "good", draining: "warn", down: "bad", stopped: "off" };

export function ClusterPage() {
  const poll = usePoll((signal) => api.cluster(signal), INTERVAL_MS, []);
  const figures = useFigures();
  const cluster = poll.data;
  const { samples } = figures;
  return html`
    <${PageHead} title="Cluster" />
    ${cluster === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${Summary} cluster=${cluster} />
          <${Section} id="nodes" title="Nodes"><${Nodes} nodes=${cluster.nodes} samples=${samples} /><//>
          <${Traffic} poll=${figures} samples=${samples} />
        `}
  `;
}

const internal = (value) => (value > 0 ? `and ${number(value)} internal` : null);

function Summary({ cluster }) {
  const mayOperate = useMayOperate();
  const isDown = useStore((state) => state.unreachableSince !== null);
  const up = cluster.nodes.filter((node) => node.state === "up").length;
  const down = cluster.nodes.filter((node) => node.state === "down");
  const problems = [
    ...down.map((node) => `Node ${node.id} is down`),
    ...cluster.unreachable.filter((id) => !down.some((node) => node.id === id)).map((id) => `Node ${id} does not answer`),
    ...(cluster.writable ? [] : [`This node cannot write: ${cluster.obstacles.join("; ") || "see its log"}`]),
    ...(cluster.leaderless ? [`${count(cluster.leaderless, "partition")} without a leader`] : []),
    ...cluster.outages.map((each) => `${each.where} since ${time(each.since_ms)}: ${each.reason}`),
  ];
  return html`
    <${Figures}
      items=${[
        ["Nodes up", `${up} of ${cluster.nodes.length}`],
        ["Topics", html`<a href=${href(["topics"])}>${number(cluster.topics)}</a>`, internal(cluster.internal_topics)],
        ["Partitions", number(cluster.partitions), internal(cluster.internal_partitions)],
        ["Groups", html`<a href=${href(["groups"])}>${number(cluster.groups)}</a>`],
        ["Version", cluster.version],
      ]}
    />
    <p class="cluster-state">
      ${isDown
        ? html`<${State} kind="off">The state is not known while the node does not answer.<//>`
        : problems.length === 0
        ? html`<${State} kind="good">Every partition has a leader, and this node can write.<//>`
        : problems.map((problem) => html`<${State} kind="bad">${problem}<//>`)}
    </p>
    <p class="note">Cluster <code>${cluster.cluster_id}</code></p>
    ${cluster.topics === 0 &&
    html`<${Empty} title="There are no topics yet.">
      <p>${mayOperate ? html`<a href=${href(["topics"])}>Create the first one</a>, or let` : "Let"} a producer create it.</p>
    <//>`}
  `;
}

function Nodes({ nodes, samples }) {
  const now = samples.at(-1)?.byNode ?? new Map();
  const rateColumn = (title, counter, format) => ({
    title,
    cell: (node) => format(rate(samples, node.id, counter)),
    value: (node) => rate(samples, node.id, counter),
    numeric: true,
    wide: true,
  });
  const columns = [
    {
      title: "Node",
      cell: (node) => html`<a href=${href(["nodes", node.id])}>${node.id}</a>${node.self && html` <span class="badge">this</span>`}`,
      value: (node) => node.id,
    },
    { title: "State", cell: (node) => html`<${State} kind=${NODE_KINDS[node.state] ?? "off"}>${node.state}<//>`, value: (node) => node.state },
    { title: "Address", cell: (node) => html`<code><${Name} text=${`${node.host}:${node.port}`} /></code>`, wide: true },
    { title: "Leads", cell: (node) => number(node.leaders), value: (node) => node.leaders, numeric: true },
    rateColumn("CPU", "cpu_ms", (value) => percent(value === null ? null : value / CORE_MS)),
    { title: "Memory", cell: (node) => bytes(now.get(node.id)?.memory_bytes), value: (node) => now.get(node.id)?.memory_bytes, numeric: true, wide: true },
    { title: "Log", cell: (node) => percent(logShare(now.get(node.id))), value: (node) => logShare(now.get(node.id)), numeric: true, wide: true },
    rateColumn("In", "received_bytes", bytesPerSecond),
    rateColumn("Out", "sent_bytes", bytesPerSecond),
    rateColumn("Requests", "requests", perSecond),
  ];
  return html`<${Table} caption="Nodes" columns=${columns} rows=${nodes} rowKey=${(node) => node.id} sort=${0} />`;
}

const logShare = (figures) => (figures ? figures.log_used_bytes / figures.log_capacity_bytes : null);

function Traffic({ poll, samples }) {
  const times = samples.slice(1).map((sample) => sample.at_ms);
  return html`
    <${Section} id="traffic" title="Traffic of Kafka clients" note="All nodes together, since their figures were first shown here, at most ten minutes.">
      <${PageError} error=${poll.error} retry=${poll.refresh} />
      <div class="charts last">
        <${Chart} label="Bytes" times_ms=${times} format=${bytesPerSecond} isBytes
          series=${[
            { label: "in", values: totals(samples, "received_bytes") },
            { label: "out", values: totals(samples, "sent_bytes") },
          ]} />
        <${Chart} label="Requests" times_ms=${times} format=${perSecond} series=${[{ label: "all APIs", values: totals(samples, "requests") }]} />
      </div>
    <//>
  `;
}
