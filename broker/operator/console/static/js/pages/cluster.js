// The cluster and its nodes.
import { api } from "../api.js";
import { Empty, Figures, Name, PageHead, Section, State, Unreachable, Waiting } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { Table } from "../components/table.js";
import { bytes, count, number, time } from "../format.js";
import { html } from "../html.js";
import { differences, useLive } from "../live.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { useMayOperate, useStore } from "../store.js";

const KINDS = { up: "good", draining: "warn", down: "bad", stopped: "off" };

export function ClusterPage() {
  const poll = usePoll((signal) => api.cluster(signal), 4_000, []);
  const cluster = poll.data;
  return html`
    <${PageHead} title="Cluster" />
    ${cluster === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${Unreachable} nodes=${cluster.unreachable} />
          <${Summary} cluster=${cluster} />
          <${Section} id="nodes" title="Nodes"><${Nodes} nodes=${cluster.nodes} /><//>
          <${Traffic} nodeId=${cluster.node_id} />
        `}
  `;
}

const internal = (value) => (value > 0 ? `and ${number(value)} internal` : null);

function Summary({ cluster }) {
  const mayOperate = useMayOperate();
  const isDown = useStore((state) => state.unreachableSince !== null);
  const up = cluster.nodes.filter((node) => node.state === "up").length;
  const problems = [
    ...cluster.nodes.filter((node) => node.state === "down").map((node) => `Node ${node.id} is down`),
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

function Nodes({ nodes }) {
  const columns = [
    {
      title: "Node",
      cell: (node) => html`${node.id}${node.self && html` <span class="badge">this</span>`}`,
      value: (node) => node.id,
    },
    { title: "State", cell: (node) => html`<${State} kind=${KINDS[node.state] ?? "off"}>${node.state}<//>`, value: (node) => node.state },
    { title: "Address", cell: (node) => html`<code><${Name} text=${`${node.host}:${node.port}`} /></code>` },
    { title: "Rack", cell: (node) => node.rack || "–", wide: true },
    { title: "Leads", cell: (node) => number(node.leaders), value: (node) => node.leaders, numeric: true },
    { title: "Epoch", cell: (node) => number(node.epoch), value: (node) => node.epoch, numeric: true, wide: true },
  ];
  return html`<${Table} caption="Nodes" columns=${columns} rows=${nodes} rowKey=${(node) => node.id} sort=${0} />`;
}

const perSecond = (value) => `${bytes(value)}/s`;

function Traffic({ nodeId }) {
  const { samples, problem } = useLive();
  const times = samples.slice(1).map((sample) => sample.at_ms);
  const requests = (sample) => Object.values(sample.requests).reduce((sum, total) => sum + total, 0);
  const last = samples.at(-1);
  return html`
    <${Section} id="traffic" title=${`Traffic of node ${nodeId}`} note="Since this page was opened, at most ten minutes.">
      ${problem && html`<p class="warning-line" role="status">${problem}</p>`}
      <div class="charts">
        <${Chart} label="Bytes" times_ms=${times} format=${perSecond} isBytes
          series=${[
            { label: "in", values: differences(samples, (sample) => sample.bytes_in) },
            { label: "out", values: differences(samples, (sample) => sample.bytes_out) },
          ]} />
        <${Chart} label="Requests" times_ms=${times} format=${(value) => `${number(Math.round(value))}/s`}
          series=${[{ label: "all APIs", values: differences(samples, requests) }]} />
      </div>
      ${last && html`<p class="note">${count(last.connections, "connection")} open.</p>`}
    <//>
  `;
}
