// Dialogs that create and delete ACLs. Each shows the node's plan first.
import { api } from "../api.js";
import { Field } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { html, useState } from "../html.js";
import { AclTable, words } from "./acl_table.js";

const ROLES = {
  producer: "Produce to a topic",
  consumer: "Consume a topic, as a group",
  other: "Chosen operations",
};
const CLUSTER = "kafka-cluster";
const PATTERNS = { literal: "Exactly these; * is all", prefixed: "The beginnings of names" };

/** The resources that a role needs names of. */
const RESOURCES = {
  producer: [
    { type: "topic", label: "Topic" },
    { type: "transactional_id", label: "Transactional id", hint: "Only for transactions.", isOptional: true },
  ],
  consumer: [
    { type: "topic", label: "Topic" },
    { type: "group", label: "Group" },
  ],
};

/** ACLs of a plan. */
function Acls({ acls, none }) {
  if (acls.length === 0) return html`<p>${none}</p>`;
  return html`<${AclTable} acls=${acls} />`;
}

export function CreateAcls({ operations, principal, close, done }) {
  const [form, setForm] = useState({ principal, permission: "allow", role: "consumer", type: "topic", pattern: "literal", host: "*" });
  const [names, setNames] = useState({});
  const [chosen, setChosen] = useState([]);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const setType = (event) => {
    setForm({ ...form, type: event.target.value });
    setChosen([]); // another type has other operations
  };
  // A denial is about operations: what a role needs may be needed for other things, too.
  const role = form.permission === "deny" ? "other" : form.role;
  const isCluster = role === "other" && form.type === "cluster";
  const own = { type: form.type, label: "Name", hint: form.type === "user" ? "A principal, such as User:alice." : "" };
  const wanted = RESOURCES[role] ?? (isCluster ? [] : [own]);
  const body = () => {
    if (role === "other" && chosen.length === 0) throw new Error("choose at least one operation");
    return {
      principal: form.principal,
      permission: form.permission,
      host: form.host,
      resources: isCluster
        ? [{ type: "cluster", name: CLUSTER }]
        : wanted.filter(({ type }) => names[type]).map(({ type }) => ({ type, name: names[type], pattern: form.pattern })),
      ...(role === "other" ? { operations: chosen } : { role }),
    };
  };
  return html`
    <${ChangeDialog} title="Create ACLs" wide verb="Create" close=${close} done=${done} inputs=${[form, names, chosen]}
      plan=${async () => api.createAcls({ ...body(), validate_only: true })} act=${async () => api.createAcls(body())}
      show=${(plan) => html`<${Acls} acls=${plan.acls} none="Nothing changes: these ACLs exist." />`}>
      <${Field} id="acl-principal" label="Principal" hint="User:alice, or alice. User:* is everybody.">
        <input id="acl-principal" required autocomplete="off" spellcheck=${false} autofocus aria-describedby="acl-principal-hint"
          value=${form.principal} onInput=${set("principal")} />
      <//>
      <${Field} id="acl-permission" label="Permission" hint="A denial counts more than any permission.">
        <select id="acl-permission" aria-describedby="acl-permission-hint" value=${form.permission} onChange=${set("permission")}>
          <option value="allow">Allow</option>
          <option value="deny">Deny</option>
        </select>
      <//>
      ${form.permission === "allow" &&
      html`<${Field} id="acl-role" label="To">
        <select id="acl-role" value=${form.role} onChange=${set("role")}>
          ${Object.entries(ROLES).map(([key, text]) => html`<option value=${key}>${text}</option>`)}
        </select>
      <//>`}
      ${role === "other" &&
      html`<${Field} id="acl-type" label="Type of the resource">
        <select id="acl-type" value=${form.type} onChange=${setType}>
          ${Object.keys(operations).map((type) => html`<option value=${type}>${words(type)}</option>`)}
        </select>
      <//>`}
      ${wanted.map(
        ({ type, label, hint, isOptional }) => html`
          <${Field} key=${type} id=${`acl-${type}`} label=${label} hint=${hint}>
            <input id=${`acl-${type}`} required=${!isOptional} autocomplete="off" spellcheck=${false} aria-describedby=${hint ? `acl-${type}-hint` : undefined}
              value=${names[type] ?? ""} onInput=${(event) => setNames({ ...names, [type]: event.target.value })} />
          <//>
        `,
      )}
      ${!isCluster &&
      html`<${Field} id="acl-pattern" label="Names are">
        <select id="acl-pattern" value=${form.pattern} onChange=${set("pattern")}>
          ${Object.entries(PATTERNS).map(([key, text]) => html`<option value=${key}>${text}</option>`)}
        </select>
      <//>`}
      ${role === "other" && html`<${Operations} all=${operations[form.type]} chosen=${chosen} setChosen=${setChosen} />`}
      <${Field} id="acl-host" label="From" hint="An address, or * for anywhere.">
        <input id="acl-host" required autocomplete="off" spellcheck=${false} aria-describedby="acl-host-hint" value=${form.host} onInput=${set("host")} />
      <//>
    <//>
  `;
}

function Operations({ all, chosen, setChosen }) {
  const change = (name) => (event) => setChosen(all.filter((each) => (each === name ? event.target.checked : chosen.includes(each))));
  return html`
    <fieldset>
      <legend>Operations</legend>
      ${all.map(
        (each) => html`<label class="check"><input type="checkbox" checked=${chosen.includes(each)} onChange=${change(each)} />${words(each)}</label>`,
      )}
    </fieldset>
  `;
}

export function DeleteAcls({ acls, close, done }) {
  const title = acls.length === 1 ? "Delete an ACL" : `Delete ${acls.length} ACLs`;
  const verb = acls.length === 1 ? "Delete the ACL" : "Delete the ACLs";
  return html`
    <${ChangeDialog} title=${title} wide verb=${verb} danger close=${close} done=${done}
      plan=${() => api.deleteAcls({ acls, validate_only: true })} act=${() => api.deleteAcls({ acls })}
      show=${(plan) => html`<${Acls} acls=${plan.acls} none="They are gone already." />`} />
  `;
}
