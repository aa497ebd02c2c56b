// Dialogs that move partitions between nodes. Each shows the node's plan first.
import { api } from "../api.js";
import { Field } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { count } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";

export function MovePartitions({ nodes, close, done }) {
  const topics = usePoll((signal) => api.topics(signal), 0, []);
  const up = nodes.filter((node) => node.state === "UP");
  const [topic, setTopic] = useState("");
  const [partitions, setPartitions] = useState("");
  const [to, setTo] = useState(String(up[0]?.id ?? ""));
  const ask = (validateOnly) => api.move(topic, partitions.replaceAll(" ", ""), to, validateOnly);
  const show = (plan) => html`
    <p>Node ${plan.to} will lead ${count(plan.partitions.length, "partition")} of ${plan.topic}: ${plan.partitions.join(", ")}. It becomes their preferred leader.</p>
  `;
  return html`
    <${ChangeDialog} title="Move partitions" verb="Move" close=${close} done=${done} inputs=${[topic, partitions, to]}
      plan=${() => ask(true)} act=${() => ask(false)} show=${show}>
      <${Field} id="move-topic" label="Topic">
        <select id="move-topic" required autofocus value=${topic} onChange=${(event) => setTopic(event.target.value)}>
          <option value="">${topics.data === null ? "Loading …" : "Choose one"}</option>
          ${(topics.data?.topics ?? []).map(({ name }) => html`<option value=${name}>${name}</option>`)}
        </select>
      <//>
      <${Field} id="move-partitions" label="Partitions" hint="As 0,2,5. Empty: all of the topic.">
        <input id="move-partitions" spellcheck=${false} autocomplete="off" aria-describedby="move-partitions-hint"
          pattern="[0-9]+( *, *[0-9]+)*" value=${partitions} onInput=${(event) => setPartitions(event.target.value)} />
      <//>
      <${Field} id="move-to" label="To">
        <select id="move-to" value=${to} onChange=${(event) => setTo(event.target.value)}>
          ${up.map(({ id }) => html`<option value=${String(id)}>node ${id}</option>`)}
        </select>
      <//>
    <//>
  `;
}

export function ElectLeaders({ close, done }) {
  const show = (plan) => html`<p>${plan.more ? "More than " : ""}${count(plan.moves.length, "partition")} will move to the preferred leader.</p>`;
  return html`
    <${ChangeDialog} title="Elect preferred leaders" verb="Elect" close=${close} done=${done} plan=${() => api.election()} act=${api.elect} show=${show} />
  `;
}

/** Pauses the balancer of the whole cluster, or ends the pause. */
export function PauseBalancing({ isOn, close, done }) {
  const show = (plan) =>
    isOn
      ? html`<p>No partition will move by itself until balancing is resumed${plan.plan.length > 0 && `: ${count(plan.plan.length, "move")} of the last plan will not be ordered`}. Moves under way go on.</p>`
      : html`<p>Partitions will move by themselves again${plan.plan.length > 0 && `: ${count(plan.plan.length, "move")} of the last plan first`}.</p>`;
  const title = isOn ? "Pause balancing" : "Resume balancing";
  return html`
    <${ChangeDialog} title=${title} verb=${isOn ? "Pause" : "Resume"} close=${close} done=${done} plan=${() => api.balance()}
      act=${() => api.setBalancing(!isOn)} show=${show} />
  `;
}

/** Begins the drain of a node, or ends it. */
export function DrainNode({ node, close, done }) {
  const isWanted = node.state === "UP";
  const show = (plan) =>
    isWanted
      ? html`<p>${count(plan.leads, "partition")} of node ${plan.node} will move to other nodes, and it gets no new ones until the drain is ended.</p>`
      : html`<p>Node ${plan.node} may lead partitions again. Those that have moved stay where they are: an election moves them back.</p>`;
  return html`
    <${ChangeDialog} title=${isWanted ? `Drain node ${node.id}` : `End the drain of node ${node.id}`} verb=${isWanted ? "Drain" : "End the drain"}
      close=${close} done=${done} plan=${() => api.drain(node.id, isWanted, true)} act=${() => api.drain(node.id, isWanted, false)} show=${show} />
  `;
}
