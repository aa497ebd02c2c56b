// Connectors of Kafka Connect clusters, with the states of their tasks. Connect itself carries the changes out.
import { api } from "../api.js";
import { Empty, Name, PageHead, Section, State, Waiting } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { Table } from "../components/table.js";
import { count } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { notify, useMayOperate } from "../store.js";

const KINDS = { RUNNING: "good", PAUSED: "off", STOPPED: "off", UNASSIGNED: "warn", RESTARTING: "warn", FAILED: "bad" };

const stateOf = (text) => html`<${State} kind=${KINDS[text] ?? "warn"}>${text.toLowerCase()}<//>`;

/** The changes of a connector: [verb, action, what it does]. */
const PAUSE = ["Pause", ["pause"], "It keeps its tasks, which do nothing until it is resumed."];
const RESUME = ["Resume", ["resume"], "It continues where it was."];
const RESTART = ["Restart", ["restart"], "The connector and all its tasks stop and start."];
const restartOf = (task) => ["Restart", ["tasks", task.id, "restart"], `Task ${task.id} stops and starts.`];

export function ConnectPage() {
  const poll = usePoll((signal) => api.connect(signal), 4_000, []);
  const [dialog, setDialog] = useState(null); // {cluster, connector, change}
  const mayOperate = useMayOperate();
  const clusters = poll.data?.clusters ?? [];
  const done = () => {
    setDialog(null);
    notify("Connect has accepted the change.");
    poll.refresh();
  };
  return html`
    <${PageHead} title="Kafka Connect" />
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : clusters.length === 0
        ? html`<${Empty} title="No Connect cluster is set."><p>The node's setting <code>admin.connect_urls</code> names them.</p><//>`
        : clusters.map(
            (cluster, index) => html`
              <${Section} key=${cluster.name} id=${`cluster-${index}`} title=${cluster.name}>
                <${Cluster} cluster=${cluster} offer=${mayOperate && ((connector, change) => setDialog({ cluster, connector, change }))} />
              <//>
            `,
          )}
    ${dialog && html`<${ChangeConnector} ...${dialog} close=${() => setDialog(null)} done=${done} />`}
  `;
}

function Cluster({ cluster, offer }) {
  if (cluster.error) return html`<p class="error-line" role="alert">${cluster.error}</p>`;
  if (cluster.connectors.length === 0) return html`<${Empty} title="The cluster has no connectors." />`;
  const button = (row, change, label) =>
    html`<button type="button" class="small" onClick=${() => offer(row, change)} aria-label=${`${change[0]} ${label}`}>${change[0]}</button>`;
  const columns = [
    { title: "Connector", cell: (row) => html`<${Name} text=${row.name} />`, value: (row) => row.name },
    { title: "State", cell: (row) => stateOf(row.state), value: (row) => row.state },
    { title: "Type", cell: (row) => row.type || "–", value: (row) => row.type, wide: true },
    { title: "Tasks", cell: (row) => html`<${Tasks} tasks=${row.tasks} />`, wide: true },
    { title: "Worker", cell: (row) => html`<code><${Name} text=${row.worker} /></code>`, wide: true },
    ...(offer
      ? [
          {
            title: "Change",
            cell: (row) => html`
              <div class="actions">
                ${button(row, row.state === "PAUSED" ? RESUME : PAUSE, row.name)}
                ${button(row, RESTART, row.name)}
              </div>
            `,
          },
        ]
      : []),
  ];
  const failures = cluster.connectors.flatMap((row) => [
    ...(row.state === "FAILED" ? [{ row, what: row.name, trace: row.trace, change: RESTART }] : []),
    ...row.tasks
      .filter((task) => task.state === "FAILED")
      .map((task) => ({ row, what: `${row.name}, task ${task.id}`, trace: task.trace, change: restartOf(task) })),
  ]);
  return html`
    <${Table} caption=${`Connectors of ${cluster.name}`} columns=${columns} rows=${cluster.connectors} rowKey=${(row) => row.name} sort=${0} />
    ${failures.map(
      ({ row, what, trace, change }) => html`
        <div class="card failure" key=${what}>
          <div class="section-head">
            <h3><${State} kind="bad">${what} has failed<//></h3>
            ${offer && button(row, change, what)}
          </div>
          ${trace === null
            ? html`<p class="note">Operators see why.</p>`
            : html`<p>${trace.split("\n")[0]}</p>
                <details><summary>Stack trace</summary><pre tabindex="0">${trace}</pre></details>`}
        </div>
      `,
    )}
  `;
}

/** `2 running, 1 failed`. */
function Tasks({ tasks }) {
  if (tasks.length === 0) return "none";
  const counts = new Map();
  for (const { state } of tasks) counts.set(state, (counts.get(state) ?? 0) + 1);
  return [...counts].map(([state, number]) => `${number} ${state.toLowerCase()}`).join(", ");
}

function ChangeConnector({ cluster, connector, change, close, done }) {
  const [verb, action, text] = change;
  const show = () => html`<p>${text}</p><p class="note">It has ${count(connector.tasks.length, "task")}.</p>`;
  return html`
    <${ChangeDialog} title=${`${verb} ${connector.name}`} verb=${verb} close=${close} done=${done} show=${show}
      plan=${async () => change} act=${() => api.changeConnector(cluster.name, connector.name, action)} />
  `;
}
