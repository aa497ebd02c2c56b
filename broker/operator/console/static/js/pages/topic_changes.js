// Dialogs that create, alter and delete a topic. Each shows the node's plan first.
import { api } from "../api.js";
import { Field } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { bytes, count, number } from "../format.js";
import { html, useState } from "../html.js";

const ADDED_PARTITIONS_HINT = "Keys move to other partitions when partitions are added; they cannot be taken away again.";

/** Return the configs of a text with a `name=value` a line. Throws Error with the line that is none. */
export function parseConfigs(text) {
  const configs = {};
  for (const line of text.split("\n").map((each) => each.trim())) {
    if (!line) continue;
    const at = line.indexOf("=");
    if (at <= 0) throw new Error(`configs: expected name=value, found “${line}”`);
    configs[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return configs;
}

/** Return the nodes that lead the partitions of a plan: `node 1: 2, node 2: 1`. */
function leadersText(placement) {
  const counts = new Map();
  for (const { leader } of placement) counts.set(leader, (counts.get(leader) ?? 0) + 1);
  return [...counts].map(([leader, led]) => `node ${leader}: ${led}`).join(", ");
}

export function CreateTopic({ initialName = "", close, done }) {
  const [name, setName] = useState(initialName);
  const [partitions, setPartitions] = useState("");
  const [configs, setConfigs] = useState("");
  const body = () => ({
    name,
    ...(partitions === "" ? {} : { partitions: Number(partitions) }),
    configs: parseConfigs(configs),
  });
  const show = (plan) => html`
    <dl class="pairs">
      <div><dt>Topic</dt><dd>${plan.name}</dd></div>
      <div><dt>Partitions</dt><dd>${number(plan.partitions)}</dd></div>
      ${plan.placement?.length > 0 && html`<div><dt>Led by</dt><dd>${leadersText(plan.placement)}</dd></div>`}
      ${Object.entries(parseConfigs(configs)).map(([key, value]) => html`<div><dt>${key}</dt><dd>${value}</dd></div>`)}
    </dl>
  `;
  return html`
    <${ChangeDialog} title="Create a topic" verb="Create" close=${close} done=${done} inputs=${[name, partitions, configs]}
      plan=${async () => api.createTopic({ ...body(), validate_only: true })} show=${show}
      act=${async () => api.createTopic(body())}>
      <${Field} id="topic-name" label="Name">
        <input id="topic-name" required maxlength="249" autocomplete="off" spellcheck=${false} autofocus
          value=${name} onInput=${(event) => setName(event.target.value)} />
      <//>
      <${Field} id="topic-partitions" label="Partitions" hint="Empty: as many as the node's settings say.">
        <input id="topic-partitions" type="number" min="1" aria-describedby="topic-partitions-hint"
          value=${partitions} onInput=${(event) => setPartitions(event.target.value)} />
      <//>
      <${Field} id="topic-configs" label="Configs" hint="One name=value a line, for example retention.ms=86400000.">
        <textarea id="topic-configs" rows="3" spellcheck=${false} aria-describedby="topic-configs-hint"
          value=${configs} onInput=${(event) => setConfigs(event.target.value)}></textarea>
      <//>
    <//>
  `;
}

/** What a plan changes, from and to. */
function Changes({ changes }) {
  if (changes.length === 0) return html`<p>Nothing changes.</p>`;
  return html`
    <dl class="pairs">
      ${changes.map(
        ({ what, from, to }) => html`
          <div>
            <dt>${what}</dt>
            <dd><s>${from ?? "default"}</s> <span aria-label="becomes">→</span> ${to ?? "default"}</dd>
          </div>
        `,
      )}
    </dl>
  `;
}

/** Adds partitions to a topic. */
export function AddPartitions({ topic, present, close, done }) {
  const [partitions, setPartitions] = useState(String(present + 1));
  const body = () => ({ partitions: Number(partitions) });
  return html`
    <${ChangeDialog} title=${`Add partitions to ${topic}`} verb="Add" close=${close} done=${done} inputs=${partitions}
      plan=${() => api.alterTopic(topic, { ...body(), validate_only: true })} act=${() => api.alterTopic(topic, body())}
      show=${(plan) => html`<${Changes} changes=${plan.changes} />`}>
      <${Field} id="new-partitions" label="Partitions in all" hint=${ADDED_PARTITIONS_HINT}>
        <input id="new-partitions" type="number" required min=${present + 1} autofocus aria-describedby="new-partitions-hint"
          value=${partitions} onInput=${(event) => setPartitions(event.target.value)} />
      <//>
    <//>
  `;
}

/** Sets one config of a topic, or returns it to its default. */
export function AlterConfig({ topic, config, close, done }) {
  const [value, setValue] = useState(config.value ?? "");
  const [toDefault, setToDefault] = useState(false);
  const body = () => ({ configs: { [config.name]: toDefault ? null : value } });
  return html`
    <${ChangeDialog} title=${`Change ${config.name}`} verb="Change" close=${close} done=${done} inputs=${[value, toDefault]}
      plan=${() => api.alterTopic(topic, { ...body(), validate_only: true })} act=${() => api.alterTopic(topic, body())}
      show=${(plan) => html`<${Changes} changes=${plan.changes} />`}>
      ${config.documentation && html`<p class="note">${config.documentation}</p>`}
      <${Field} id="config-value" label=${config.name} hint=${`Default: ${config.default ?? "none"}`}>
        <input id="config-value" spellcheck=${false} autocomplete="off" autofocus disabled=${toDefault} aria-describedby="config-value-hint"
          value=${value} onInput=${(event) => setValue(event.target.value)} />
      <//>
      <label class="check">
        <input type="checkbox" checked=${toDefault} onChange=${(event) => setToDefault(event.target.checked)} />
        Use the default
      </label>
    <//>
  `;
}

export function DeleteTopic({ topic, close, done }) {
  const show = (plan) => html`
    <p>
      ${count(plan.partitions, "partition")} with ${plan.records === null ? "all records" : `up to ${count(plan.records, "record")}`}
      (${bytes(plan.bytes)}) are deleted.
    </p>
    ${plan.groups.length > 0 &&
    html`<p class="warning-line">${count(plan.groups.length, "group")} committed offsets of it: ${plan.groups.join(", ")}</p>`}
  `;
  return html`
    <${ChangeDialog} title=${`Delete ${topic}`} verb="Delete the topic" danger confirm=${topic} close=${close} done=${done}
      plan=${() => api.deleteTopic(topic, true)} act=${() => api.deleteTopic(topic, false)} show=${show} />
  `;
}
