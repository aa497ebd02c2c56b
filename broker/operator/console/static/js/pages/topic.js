// One topic: its partitions, configs and groups.
import { api } from "../api.js";
import { Command, Empty, Figures, isMissing, Name, PageHead, Section, State, Unreachable, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { firstGroup, firstRecord, INSTALL_TABLES, makeTable } from "../commands.js";
import { bytes, duration, number, perSecond, replicaText } from "../format.js";
import { html, useState } from "../html.js";
import { growthOf, useLastTwo, usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate, useStore } from "../store.js";
import { subjectsOf } from "./schema_names.js";
import { AddPartitions, AlterConfig, CreateTopic, DeleteTopic } from "./topic_changes.js";

export function TopicPage({ topic }) {
  const poll = usePoll((signal) => api.topic(topic, signal), 5_000, [topic]);
  const answers = useLastTwo(poll.data);
  const [dialog, setDialog] = useState(null);
  const mayOperate = useMayOperate();
  const close = () => setDialog(null);
  const changed = (text) => () => {
    close();
    notify(text);
    poll.refresh();
  };
  const deleted = () => {
    notify(`Topic ${topic} is deleted.`);
    go(["topics"]);
  };
  const created = () => {
    close();
    notify(`Topic ${topic} is created.`);
    poll.refresh();
  };
  const found = isMissing(poll) ? null : poll.data;
  const mayChange = mayOperate && found && !found.internal;
  return html`
    <${PageHead} title=${topic} crumbs=${[["Topics", href(["topics"])]]}>
      ${!isMissing(poll) && html`<a class="button" href=${href(["topics", topic, "records"])}>Browse records</a>`}
      ${mayChange &&
      html`
        <button type="button" onClick=${() => setDialog({ kind: "partitions" })}>Add partitions</button>
        <button type="button" class="danger-quiet" onClick=${() => setDialog({ kind: "delete" })}>Delete</button>
      `}
    <//>
    ${found === null
      ? html`<${Waiting} poll=${poll} missing=${html`<${MissingTopic} create=${mayOperate && (() => setDialog({ kind: "create" }))} />`} />`
      : html`
          <${Unreachable} nodes=${found.unreachable} />
          <${Summary} topic=${found} written=${growthOf(answers, endOf)} />
          <${Section} id="partitions" title="Partitions"><${Partitions} topic=${topic} partitions=${found.partitions} /><//>
          <${Section} id="groups" title="Groups" note="Groups that have committed offsets of this topic.">
            <${Groups} topic=${topic} groups=${found.groups} />
          <//>
          ${!found.internal && html`<${Section} id="table" title="Table"><${TableOf} topic=${found} /><//>`}
          <${Section} id="configs" title="Configs" note="What the topic sets itself comes first.">
            <${Configs} configs=${found.configs} alter=${mayChange ? (config) => setDialog({ kind: "config", config }) : null} />
          <//>
        `}
    ${dialog?.kind === "create" && html`<${CreateTopic} initialName=${topic} close=${close} done=${created} />`}
    ${dialog?.kind === "partitions" &&
    html`<${AddPartitions} topic=${topic} present=${found.partitions.length} close=${close} done=${changed("Partitions are added.")} />`}
    ${dialog?.kind === "config" &&
    html`<${AlterConfig} topic=${topic} config=${dialog.config} close=${close} done=${changed(`${dialog.config.name} is changed.`)} />`}
    ${dialog?.kind === "delete" && html`<${DeleteTopic} topic=${topic} close=${close} done=${deleted} />`}
  `;
}

/** What can be done on the page of a topic that does not exist. */
function MissingTopic({ create }) {
  return html`
    <div class="actions">
      <a class="button" href=${href(["topics"])}>All topics</a>
      ${create && html`<button type="button" onClick=${create}>Create this topic</button>`}
    </div>
  `;
}

/** Return the sum of what is known of the partitions, or null if something is not. */
function sum(partitions, value) {
  const values = partitions.map(value);
  return values.includes(null) ? null : values.reduce((total, each) => total + each, 0);
}

const offsetsOf = (partition) =>
  partition.high_watermark === null || partition.start_offset === null ? null : partition.high_watermark - partition.start_offset;

/** Return the sum of the end offsets, or null. */
const endOf = (topic) => sum(topic.partitions, (partition) => partition.high_watermark);

function Summary({ topic, written }) {
  const policy = topic.configs.find((config) => config.name === "cleanup.policy")?.value ?? "–";
  const offsets = sum(topic.partitions, offsetsOf);
  return html`
    <${Figures}
      items=${[
        ["Partitions", number(topic.partitions.length)],
        ["Offsets", number(offsets), "from start to end; records may be fewer"],
        ["Written", perSecond(written)],
        ["Size", bytes(sum(topic.partitions, (partition) => partition.bytes))],
        ["Clean-up", policy],
      ]}
    />
    <p class="note">Topic id <code>${topic.id}</code>${topic.internal ? ". The node itself writes this topic." : ""}</p>
    <${Schemas} topic=${topic.name} />
    ${offsets === 0 &&
    html`<${Empty} title="The topic has no records.">
      <p>Send a first one:</p>
      <${Command} text=${firstRecord(topic.name)} />
    <//>`}
  `;
}

/** Links to the subjects of the registry that are named after the topic, if there are any. */
function Schemas({ topic }) {
  const hasRegistry = useStore((state) => state.session?.has_schema_registry);
  const poll = usePoll(async (signal) => (hasRegistry ? api.subjects({ subjectPrefix: `${topic}-` }, signal) : []), 0, [topic, hasRegistry]);
  const found = subjectsOf(topic).filter((subject) => poll.data?.includes(subject));
  if (found.length === 0) return null;
  return html`
    <p class="note">
      Schemas: ${found.map((subject, index) => html`${index > 0 && ", "}<a href=${href(["schemas", subject])}><${Name} text=${subject} /></a>`)}
    </p>
  `;
}

function Partitions({ topic, partitions }) {
  const columns = [
    {
      title: "Partition",
      cell: (row) => html`
        <a href=${href(["topics", topic, "partitions", row.index])}>${row.index}</a>
        ${row.error && html` <${State} kind="bad">${row.error}<//>`}
      `,
      value: (row) => row.index,
    },
    {
      title: "Leader",
      cell: (row) => (row.leader === null || row.leader < 0 ? html`<${State} kind="bad">none<//>` : `node ${row.leader}`),
      value: (row) => row.leader,
    },
    ...(partitions.some((row) => row.replicas.length > 0) ? [{ title: "Replicas", cell: (row) => replicaText(row.replicas), wide: true }] : []),
    { title: "Start", cell: (row) => number(row.start_offset), value: (row) => row.start_offset, numeric: true, wide: true },
    { title: "End", cell: (row) => number(row.high_watermark), value: (row) => row.high_watermark, numeric: true },
    {
      title: "In open transactions",
      cell: (row) => (row.last_stable_offset === null || row.high_watermark === null ? "–" : number(row.high_watermark - row.last_stable_offset)),
      value: (row) => row.high_watermark - row.last_stable_offset,
      numeric: true,
      wide: true,
    },
    { title: "Size", cell: (row) => bytes(row.bytes), value: (row) => row.bytes, numeric: true },
    { title: "Epoch", cell: (row) => number(row.leader_epoch), value: (row) => row.leader_epoch, numeric: true, wide: true },
    {
      title: "Browse",
      cell: (row) =>
        html`<a href=${href(["topics", topic, "records"], { partition: row.index })} aria-label=${`Records of partition ${row.index}`}>records</a>`,
      wide: true,
    },
  ];
  return html`<${Table} caption="Partitions" columns=${columns} rows=${partitions} rowKey=${(row) => row.index} sort=${0} />`;
}

function Groups({ topic, groups }) {
  if (groups.length === 0) {
    return html`
      <${Empty} title="No group has read this topic.">
        <p>Read it as a group, until Ctrl-C:</p>
        <${Command} text=${firstGroup(topic)} />
      <//>
    `;
  }
  return html`<ul class="links">${groups.map(
    ({ group_id, lag }) =>
      html`<li><a href=${href(["groups", group_id])}>${group_id}<small>${lag === null ? "lag unknown" : `lag ${number(lag)}`}</small></a></li>`,
  )}</ul>`;
}

/** The table that the topic is, or what makes it one. */
function TableOf({ topic }) {
  const hasTables = useStore((state) => state.session?.has_tables);
  if (topic.configs.find((config) => config.name === "table.enable")?.value === "true") {
    return html`
      <p>
        The topic is a table: engines that read Iceberg have its committed records as rows.${" "}
        <a href=${href(["tables", topic.name])}>Queries, schema and snapshots</a>
      </p>
    `;
  }
  return html`
    <${Empty} title="The topic is no table.">
      <p>
        ${hasTables
          ? "If its values are JSON, this gives engines that read Iceberg its committed records as rows:"
          : "It can be one on nodes that have the packages for it:"}
      </p>
      <${Command} text=${hasTables ? makeTable(topic.name) : INSTALL_TABLES} />
    <//>
  `;
}

/** Configs that most people look for. The others are shown on request, and where the topic sets them. */
const COMMON = new Set(["cleanup.policy", "compression.type", "max.message.bytes", "retention.bytes", "retention.ms"]);
const SOURCES = { dynamic_topic_config: "this topic", static_broker_config: "the node's settings", default_config: "default" };

/** Longest time that is shown in days; longer ones stand for no limit. */
const TIME_MAX_MS = 1e15;

/** Return a value with its unit, where the config's name has one: `604800000` of `retention.ms` is `7 d`. */
function inUnits(name, text) {
  const value = Number(text);
  if (text === "-1" && /\.(ms|bytes)$/.test(name)) return "no limit";
  if (!/^\d+$/.test(text ?? "")) return "";
  if (name.endsWith(".ms") && value >= 1_000 && value < TIME_MAX_MS) return duration(value);
  return name.endsWith(".bytes") && value >= 1_024 && value < 2 ** 50 ? bytes(value) : "";
}

function ConfigValue({ name, text }) {
  const shown = inUnits(name, text);
  return html`<code><${Name} text=${text === "" ? "(empty)" : (text ?? "none")} /></code>${shown && html` <small>${shown}</small>`}`;
}

function Configs({ configs, alter }) {
  const [showsAll, setShowsAll] = useState(false);
  const rows = configs
    .filter((config) => showsAll || config.is_own || COMMON.has(config.name))
    .toSorted((a, b) => b.is_own - a.is_own || a.name.localeCompare(b.name));
  const columns = [
    { title: "Config", cell: (row) => html`<span class=${row.is_own ? "changed" : ""} title=${row.documentation ?? ""}><${Name} text=${row.name} /></span>` },
    { title: "Value", cell: (row) => (row.sensitive ? "hidden" : html`<${ConfigValue} name=${row.name} text=${row.value} />`) },
    { title: "Default", cell: (row) => (row.is_own ? html`<${ConfigValue} name=${row.name} text=${row.default} />` : "the same"), wide: true },
    { title: "From", cell: (row) => SOURCES[row.source] ?? row.source.replaceAll("_", " "), wide: true },
    {
      title: "Edit",
      cell: (row) =>
        alter && !row.read_only &&
        html`<button type="button" class="small" onClick=${() => alter(row)} aria-label=${`Change ${row.name}`}>Change</button>`,
    },
  ];
  return html`
    <${Table} caption="Configs" columns=${columns} rows=${rows} rowKey=${(row) => row.name} />
    <p class="more">
      <button type="button" class="small" aria-expanded=${showsAll} onClick=${() => setShowsAll(!showsAll)}>
        ${showsAll ? "Show fewer" : `Show all ${configs.length} configs`}
      </button>
    </p>
  `;
}
