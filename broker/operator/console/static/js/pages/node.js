// One node: what its process uses, and its traffic, with curves over the last minutes.
import { api } from "../api.js";
import { Empty, Figures, Name, PageHead, Section, State, Waiting } from "../components/basics.js";
import { Chart } from "../components/chart.js";
import { rate, rates, useFigures } from "../figures.js";
import { bytes, bytesPerSecond, duration, number, percent, perSecond } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { CORE_MS, NODE_KINDS } from "./cluster.js";

export function NodePage({ node }) {
  const id = Number(node);
  const poll = usePoll((signal) => api.cluster(signal), 4_000, []);
  const figures = useFigures();
  const { samples } = figures;
  const row = poll.data?.nodes.find((each) => each.id === id);
  const now = samples.at(-1)?.byNode.get(id);
  return html`
    <${PageHead} title=${`Node ${node}`} crumbs=${[["Cluster", href([])]]}>
      ${row?.self && html`<a class="button" href=${href(["storage"])}>Its storage</a>`}
    <//>
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : row === undefined
        ? html`<${Empty} title=${`Node ${node} is not registered.`}><p><a href=${href([])}>All nodes</a></p><//>`
        : html`
            <${Summary} row=${row} now=${now} samples=${samples} />
            ${now
              ? html`<${Charts} node=${id} samples=${samples} cores=${now.cores} />`
              : samples.length === 0
                ? html`<${Waiting} poll=${figures} />`
                : html`<${Empty} title=${`Node ${id} does not answer.`}><p>Its figures are shown once it does.</p><//>`}
          `}
  `;
}

function Summary({ row, now, samples }) {
  const cpu = rate(samples, row.id, "cpu_ms");
  const known = now
    ? [
        ["CPU", cpu === null ? "–" : percent(cpu / CORE_MS), `of a core, of ${now.cores}`],
        ["Memory", bytes(now.memory_bytes), `of ${bytes(now.memory_available_bytes)} available`],
        ["Log", percent(now.log_used_bytes / now.log_capacity_bytes), `${bytes(now.log_used_bytes)} of ${bytes(now.log_capacity_bytes)}`],
        ["Free disk", bytes(now.disk_free_bytes), `of ${bytes(now.disk_total_bytes)}, for the data directory`],
        ["Up for", duration(now.at_ms - now.started_ms)],
        ["Connections", number(now.connections)],
      ]
    : [];
  return html`
    <${Figures}
      items=${[
        ["State", html`<${State} kind=${NODE_KINDS[row.state] ?? "off"}>${row.state}<//>`],
        ["Leads", number(row.leaders), "partitions"],
        ...known,
      ]}
    />
    <p class="note">
      Clients reach it at <code><${Name} text=${`${row.host}:${row.port}`} /></code>. Epoch ${number(row.epoch)}${row.rack && html`, rack <code>${row.rack}</code>`}${now && `, version ${now.version}`}.
    </p>
  `;
}

function Charts({ node, samples, cores }) {
  const times = samples.slice(1).map((sample) => sample.at_ms);
  const gauge = (name) => samples.slice(1).map((sample) => sample.byNode.get(node)?.[name] ?? null);
  const used = rates(samples, node, "cpu_ms").map((value) => (value === null ? null : (100 * value) / CORE_MS));
  return html`
    <${Section} id="over-time" title="Over time" note="Since its figures were first shown here, at most ten minutes.">
      <div class="charts last-four">
        <${Chart} label="Traffic of Kafka clients" times_ms=${times} format=${bytesPerSecond} isBytes
          series=${[
            { label: "in", values: rates(samples, node, "received_bytes") },
            { label: "out", values: rates(samples, node, "sent_bytes") },
          ]} />
        <${Chart} label="Requests" times_ms=${times} format=${perSecond}
          series=${[{ label: "all APIs", values: rates(samples, node, "requests") }]} />
        <${Chart} label=${`CPU, ${cores} cores`} times_ms=${times} format=${(value) => percent(value / 100)}
          series=${[{ label: "of a core", values: used }]} />
        <${Chart} label="Memory and log" times_ms=${times} format=${bytes} isBytes
          series=${[
            { label: "memory", values: gauge("memory_bytes") },
            { label: "log in use", values: gauge("log_used_bytes") },
          ]} />
      </div>
    <//>
  `;
}
