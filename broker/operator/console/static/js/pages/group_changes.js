// Dialogs that reset the offsets of a group and delete it. Each shows the node's plan first.
import { api } from "../api.js";
import { Field } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { Table } from "../components/table.js";
import { count, number, timeOfField } from "../format.js";
import { html, useState } from "../html.js";

const TARGETS = {
  earliest: "The earliest record",
  latest: "The end: skip what has not been read",
  time: "The first record at a time or later",
  offset: "An offset",
  shift: "Forwards or backwards by a number of records",
};

const nameOf = ({ topic, partition }) => `${topic} ${partition}`;

const COLUMNS = [
  { title: "Partition", cell: nameOf },
  { title: "From", cell: (row) => number(row.from), numeric: true },
  { title: "To", cell: (row) => html`<b>${number(row.to)}</b>`, numeric: true },
  { title: "Lag then", cell: (row) => number(row.lag), numeric: true },
];

export function ResetGroup({ group, close, done }) {
  const [topic, setTopic] = useState("");
  const [to, setTo] = useState("earliest");
  const [value, setValue] = useState("");
  const topics = [...new Set(group.offsets.map((row) => row.topic))].sort();
  const body = () => ({
    ...(topic ? { topic } : {}),
    to,
    ...(to === "time" ? { value: timeOfField(value) } : {}),
    ...(to === "offset" || to === "shift" ? { value: Number(value) } : {}),
  });
  const choose = (event) => {
    setTo(event.target.value);
    setValue("");
  };
  const show = ({ changes }) =>
    changes.length === 0
      ? html`<p>Nothing changes.</p>`
      : html`<${Table} caption="Offsets that change" columns=${COLUMNS} rows=${changes} rowKey=${nameOf} />`;
  return html`
    <${ChangeDialog} title=${`Reset offsets of ${group.group_id}`} verb="Reset" close=${close} done=${done} inputs=${[topic, to, value]}
      plan=${() => api.resetGroup(group.group_id, { ...body(), validate_only: true })} show=${show}
      act=${() => api.resetGroup(group.group_id, body())}>
      ${group.members.length > 0 &&
      html`<p class="warning-line">The group has members, which would overwrite new offsets: stop them first.</p>`}
      <${Field} id="reset-topic" label="Topic">
        <select id="reset-topic" value=${topic} onChange=${(event) => setTopic(event.target.value)}>
          <option value="">All that it has committed</option>
          ${topics.map((name) => html`<option value=${name}>${name}</option>`)}
        </select>
      <//>
      <${Field} id="reset-to" label="To">
        <select id="reset-to" value=${to} onChange=${choose}>
          ${Object.entries(TARGETS).map(([key, text]) => html`<option value=${key}>${text}</option>`)}
        </select>
      <//>
      ${to === "time" &&
      html`<${Field} id="reset-value" label="Time" hint="In UTC.">
        <input id="reset-value" type="datetime-local" step="1" required aria-describedby="reset-value-hint" value=${value}
          onInput=${(event) => setValue(event.target.value)} />
      <//>`}
      ${(to === "offset" || to === "shift") &&
      html`<${Field} id="reset-value" label=${to === "offset" ? "Offset" : "Records; negative: backwards"}>
        <input id="reset-value" type="number" required min=${to === "offset" ? 0 : undefined} value=${value}
          onInput=${(event) => setValue(event.target.value)} />
      <//>`}
    <//>
  `;
}

export function DeleteGroup({ group, close, done }) {
  return html`
    <${ChangeDialog} title=${`Delete ${group}`} verb="Delete the group" danger confirm=${group} close=${close} done=${done}
      plan=${() => api.deleteGroup(group, true)} act=${() => api.deleteGroup(group, false)}
      show=${(plan) => html`<p>${count(plan.offsets, "committed offset")} of the group will be gone.</p>`} />
  `;
}
