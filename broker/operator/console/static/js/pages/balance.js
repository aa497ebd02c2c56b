// Which node has how much load and leads how many partitions, what moves between nodes, and changes of it.
import { api } from "../api.js";
import { Empty, Meter, Name, PageError, PageHead, Section, State, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { ago, count, number } from "../format.js";
import { html, useRef, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { DrainNode, ElectLeaders, MovePartitions, PauseBalancing } from "./balance_changes.js";
import { BalanceHistory, BalancePlan, BalancerState, NodeLoads, PartitionLoads } from "./balance_loads.js";
import { NODE_KINDS } from "./cluster.js";

const INTERVAL_MS = 2_000;
/** Rows of a table of partitions. */
const SHOWN_MAX = 200;

const nameOf = ({ topic, partition }) => `${topic} ${partition}`;
const nodeText = (id) => (id === null || id < 0 ? "none" : `node ${id}`);

export function BalancePage() {
  const poll = usePoll((signal) => api.clusterStatus(signal), INTERVAL_MS, []);
  const election = usePoll((signal) => api.election(signal), INTERVAL_MS, []);
  const balancing = usePoll((signal) => api.balance(signal), INTERVAL_MS, []);
  const balance = balancing.data;
  const [dialog, setDialog] = useState(null); // {kind, node?}
  const mayOperate = useMayOperate();
  const status = poll.data;
  const strays = election.data?.moves ?? [];
  const close = () => setDialog(null);
  const changed = (text) => () => {
    close();
    notify(text);
    poll.refresh();
    election.refresh();
    balancing.refresh();
  };
  return html`
    <${PageHead} title="Balance">
      ${mayOperate &&
      status?.nodes.length > 1 &&
      html`
        <button type="button" disabled=${balance === null} onClick=${() => setDialog({ kind: "pause" })}>${balance?.is_on === false ? "Resume balancing" : "Pause balancing"}</button>
        <button type="button" onClick=${() => setDialog({ kind: "move" })}>Move partitions</button>
        <button type="button" disabled=${strays.length === 0} onClick=${() => setDialog({ kind: "elect" })}>Elect preferred leaders</button>
      `}
    <//>
    ${status === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${balancing.error} retry=${balancing.refresh} />
          ${balance && html`<${BalancerState} balance=${balance} />`}
          <${Section} id="nodes" title="Partitions by node">
            <${Nodes} nodes=${status.nodes} drain=${mayOperate && ((node) => setDialog({ kind: "drain", node }))} />
          <//>
          <${Section} id="moves" title="Moves" note="Orders that are not carried out yet. Clients see no error while a partition moves.">
            <${Moves} moves=${status.moves} />
          <//>
          ${balance &&
          html`
            <${Section} id="loads" title="Load by node" note="Processor time that the traffic of partitions costs, a mean of the last minute: 0.5 is half a core.">
              <${NodeLoads} nodes=${balance.nodes} />
            <//>
            <${Section} id="plan" title="Plan" note="Made every ten seconds, also while balancing is paused.">
              <${BalancePlan} balance=${balance} />
            <//>
            <${Section} id="hot" title="Load by partition" note="Those that cost most. A hot one costs more than a node does in the mean: no move helps.">
              <${PartitionLoads} partitions=${balance.partitions} />
            <//>
            <${Section} id="history" title="Moves of the balancer">
              <${BalanceHistory} history=${balance.history} controller=${balance.controller} />
            <//>
          `}
          <${Section} id="strays" title="Not at the preferred leader" note="An election moves these back. A partition prefers the node it was last moved to by hand.">
            <${PageError} error=${election.error} retry=${election.refresh} />
            <${Strays} election=${election.data} />
          <//>
        `}
    ${dialog?.kind === "move" &&
    html`<${MovePartitions} nodes=${status.nodes} close=${close} done=${changed("The moves are ordered.")} />`}
    ${dialog?.kind === "pause" &&
    html`<${PauseBalancing} isOn=${balance.is_on} close=${close} done=${changed(balance.is_on ? "Balancing is paused." : "Balancing is resumed.")} />`}
    ${dialog?.kind === "elect" && html`<${ElectLeaders} close=${close} done=${changed("The moves are ordered.")} />`}
    ${dialog?.kind === "drain" &&
    html`<${DrainNode} node=${dialog.node} close=${close}
      done=${changed(`Node ${dialog.node.id} ${dialog.node.state === "DRAINING" ? "may lead partitions again." : "is being drained."}`)} />`}
  `;
}

function Nodes({ nodes, drain }) {
  const most = Math.max(1, ...nodes.map((node) => node.leads));
  const columns = [
    { title: "Node", cell: (node) => html`<a href=${href(["nodes", node.id])}>${node.id}</a>`, value: (node) => node.id },
    {
      title: "State",
      cell: (node) => html`<${State} kind=${NODE_KINDS[STATES[node.state]] ?? "off"}>${STATES[node.state] ?? node.state}<//>`,
      value: (node) => node.state,
    },
    { title: "Leads", cell: (node) => number(node.leads), value: (node) => node.leads, numeric: true },
    { title: "Share", cell: (node) => html`<${Share} value=${node.leads} most=${most} />`, wide: true },
    { title: "Rack", cell: (node) => node.rack || "–", value: (node) => node.rack, wide: true },
    ...(drain && nodes.length > 1
      ? [
          {
            title: "Change",
            cell: (node) =>
              (node.state === "UP" || node.state === "DRAINING") &&
              html`<button type="button" class="small" onClick=${() => drain(node)}
                aria-label=${node.state === "UP" ? `Drain node ${node.id}` : `End the drain of node ${node.id}`}>
                ${node.state === "UP" ? "Drain" : "End the drain"}
              </button>`,
          },
        ]
      : []),
  ];
  return html`<${Table} caption="Partitions by node" columns=${columns} rows=${nodes} rowKey=${(node) => node.id} sort=${0} />`;
}

/** States of nodes, as other pages name them. */
const STATES = { UP: "up", DRAINING: "draining", FAILED: "down", LEFT: "stopped" };

function Share({ value, most }) {
  return html`
    <svg class="progress" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      <rect class="track" width="100" height="6" />
      <rect class="fill" width=${(100 * value) / most} height="6" />
    </svg>
  `;
}

const MOVE_COLUMNS = [
  {
    title: "Partition",
    cell: (row) => html`<a href=${href(["topics", row.topic, "partitions", row.partition])}><${Name} text=${nameOf(row)} /></a>`,
    value: nameOf,
  },
  { title: "From", cell: (row) => nodeText(row.from), value: (row) => row.from },
  { title: "To", cell: (row) => nodeText(row.to), value: (row) => row.to },
  { title: "Ordered", cell: (row) => ago(row.asked_ms), value: (row) => row.asked_ms, numeric: true, wide: true },
  { title: "Because of", cell: (row) => row.reason, value: (row) => row.reason, wide: true },
  { title: "Failure", cell: (row) => (row.failure ? html`<${State} kind="bad">${row.failure}<//>` : "–"), wide: true },
];

/** The moves that are left, and how many of those that this page has seen are done. */
function Moves({ moves }) {
  const seen = useRef(new Set());
  for (const move of moves) seen.current.add(nameOf(move));
  const [all, left] = [seen.current.size, moves.length];
  const failed = moves.filter((move) => move.failure).length;
  return html`
    ${all > 0 &&
    html`<${Meter} label="Carried out since this page was opened" value=${all - left} capacity=${all}
      text=${`${number(all - left)} of ${number(all)}${failed > 0 ? `; ${count(failed, "move")} failed, and will be tried again` : ""}`} />`}
    ${left > 0
      ? html`<${Table} caption="Moves" columns=${MOVE_COLUMNS} rows=${moves.slice(0, SHOWN_MAX)} rowKey=${nameOf} sort=${0} />
          ${left > SHOWN_MAX && html`<p class="note">${number(left - SHOWN_MAX)} more.</p>`}`
      : html`<${Empty} title="No partition is being moved." />`}
  `;
}

function Strays({ election }) {
  if (election === null) return html`<p class="waiting" role="status">Loading …</p>`;
  const { moves, more } = election;
  if (moves.length === 0) return html`<${Empty} title="Every partition is led by its preferred leader, as far as that is up." />`;
  return html`
    <${Table} caption="Not at the preferred leader" columns=${MOVE_COLUMNS.slice(0, 3)} rows=${moves.slice(0, SHOWN_MAX)} rowKey=${nameOf} sort=${0} />
    ${(more || moves.length > SHOWN_MAX) && html`<p class="note">There are more.</p>`}
  `;
}
