// What the balancer measures, plans and has done, as its controller tells it.
import { Empty, Figures, Name, State } from "../components/basics.js";
import { Table } from "../components/table.js";
import { ago, bytesPerSecond, count, number, percent, perSecond } from "../format.js";
import { html } from "../html.js";
import { href } from "../router.js";

const nameOf = ({ topic, partition }) => `${topic} ${partition}`;
const loadText = (cores) => cores.toFixed(3);

const TRAFFIC_COLUMNS = [
  { title: "In", cell: (row) => bytesPerSecond(row.received_bytes), value: (row) => row.received_bytes, numeric: true },
  { title: "Out", cell: (row) => bytesPerSecond(row.sent_bytes), value: (row) => row.sent_bytes, numeric: true },
  { title: "Requests", cell: (row) => perSecond(row.requests), value: (row) => row.requests, numeric: true, wide: true },
];

const REPLICA_COLUMN = {
  title: "As replica",
  cell: (node) => (node.up_ms === null ? "–" : loadText(node.replica_cores)),
  value: (node) => node.replica_cores,
  numeric: true,
  wide: true,
};

const PARTITION_COLUMN = {
  title: "Partition",
  cell: (row) => html`<a href=${href(["topics", row.topic, "partitions", row.partition])}><${Name} text=${nameOf(row)} /></a>`,
  value: nameOf,
};

/** What the balancer does now, above all else on the page. */
export function BalancerState({ balance }) {
  const { is_on: isOn, waits, plan, nodes, spread_before: spread, controller } = balance;
  return html`
    ${!isOn && html`<p class="warning-line" role="status">Balancing is paused: no partition moves by itself.</p>`}
    <${Figures}
      items=${[
        ["Balancing", isOn ? "on" : "paused", `by node ${controller}, the controller`],
        ["Most load", nodes.length > 0 ? `${spread.toFixed(2)} × mean` : "–", "of a node; 1 is even"],
        ["Plan", waits ? "waits" : plan.length > 0 ? count(plan.length, "move") : "nothing to move", waits],
      ]}
    />
  `;
}

export function NodeLoads({ nodes }) {
  if (nodes.length === 0) return html`<${Empty} title="Nothing is measured yet." />`;
  const mean = nodes.reduce((sum, node) => sum + node.cores, 0) / nodes.length;
  const columns = [
    { title: "Node", cell: (node) => html`<a href=${href(["nodes", node.node])}>${node.node}</a>`, value: (node) => node.node },
    { title: "Load", cell: (node) => (node.up_ms === null ? "–" : loadText(node.cores)), value: (node) => node.cores, numeric: true },
    { title: "Of mean", cell: (node) => (mean > 0 ? percent(node.cores / mean) : "–"), value: (node) => node.cores, numeric: true },
    ...(nodes.some((node) => node.replica_cores > 0) ? [REPLICA_COLUMN] : []),
    ...TRAFFIC_COLUMNS,
  ];
  return html`<${Table} caption="Load by node" columns=${columns} rows=${nodes} rowKey=${(node) => node.node} sort=${0} />`;
}

const LOAD_COLUMNS = [
  PARTITION_COLUMN,
  { title: "Leader", cell: (row) => `node ${row.leader}`, value: (row) => row.leader },
  { title: "Load", cell: (row) => loadText(row.cores), value: (row) => row.cores, numeric: true },
  ...TRAFFIC_COLUMNS,
  {
    title: "Note",
    cell: (row) =>
      row.advice
        ? html`<${State} kind="warn">hot: ${row.advice}<//>`
        : row.resting
          ? "was moved a moment ago, and rests"
          : "–",
    value: (row) => (row.advice ? 0 : 1),
  },
];

export function PartitionLoads({ partitions }) {
  const busy = partitions.filter((row) => row.cores > 0);
  if (busy.length === 0) return html`<${Empty} title="No partition has traffic." />`;
  return html`<${Table} caption="Load by partition" columns=${LOAD_COLUMNS} rows=${busy} rowKey=${nameOf} sort=${2} descending />`;
}

const MOVE_COLUMNS = [
  PARTITION_COLUMN,
  { title: "From", cell: (row) => `node ${row.from}`, value: (row) => row.from },
  { title: "To", cell: (row) => `node ${row.to}`, value: (row) => row.to },
  { title: "Load", cell: (row) => loadText(row.cores), value: (row) => row.cores, numeric: true },
  { title: "Because", cell: (row) => `${row.rule}: ${row.reason}`, value: (row) => row.rule, wide: true },
];

export function BalancePlan({ balance }) {
  const { plan, waits, spread_before: before, spread_after: after } = balance;
  if (plan.length === 0) return html`<${Empty} title=${waits ? `The balancer waits: ${waits}.` : "Nothing is to be moved."} />`;
  return html`
    <p class="note">Load of the node with the most, in multiples of the mean: ${before.toFixed(2)} now, ${after.toFixed(2)} after these moves.</p>
    <${Table} caption="Plan" columns=${MOVE_COLUMNS} rows=${plan} rowKey=${nameOf} sort=${0} />
  `;
}

const HISTORY_COLUMNS = [
  { title: "Ordered", cell: (row) => ago(row.ordered_ms), value: (row) => row.ordered_ms, numeric: true },
  ...MOVE_COLUMNS,
  {
    title: "Result",
    cell: (row) => (row.failure ? html`<${State} kind="bad">${row.failure}<//>` : row.done ? "done" : "ordered"),
  },
];

export function BalanceHistory({ history, controller }) {
  if (history.length === 0) {
    return html`<${Empty} title=${`Node ${number(controller)} has moved nothing since it became the controller.`} />`;
  }
  return html`<${Table} caption="Moves of the balancer" columns=${HISTORY_COLUMNS} rows=${history}
    rowKey=${(row) => `${row.ordered_ms} ${nameOf(row)}`} sort=${0} descending />`;
}
