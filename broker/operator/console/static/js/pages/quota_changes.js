// Dialogs that set and remove quotas. Each shows the node's plan first.
import { api } from "../api.js";
import { Field } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { html, useState } from "../html.js";
import { entityText, QUOTAS, quotasOf } from "./quota_names.js";

/** What a quota can be of: types of the parts, and the words for them. */
const KINDS = {
  user: { text: "A user", types: ["user"] },
  client: { text: "A client id", types: ["client-id"] },
  both: { text: "A client id of a user", types: ["user", "client-id"] },
  ip: { text: "An address", types: ["ip"] },
};
const PARTS = {
  user: { label: "User", any: "Any user that has no quota of its own" },
  "client-id": { label: "Client id", any: "Any client id that has no quota of its own" },
  ip: { label: "Address", any: "Any address that has no quota of its own" },
};

/** What a plan changes. */
function Changes({ changes }) {
  if (changes.length === 0) return html`<p>Nothing changes.</p>`;
  const text = (name, value) => (value === null ? "no quota" : (QUOTAS[name]?.text(value) ?? value));
  return html`
    <dl class="pairs">
      ${changes.map(
        ({ quota, from, to }) => html`
          <div>
            <dt>${QUOTAS[quota]?.label ?? quota}</dt>
            <dd><s>${text(quota, from)}</s> <span aria-label="becomes">→</span> ${text(quota, to)}</dd>
          </div>
        `,
      )}
    </dl>
  `;
}

/** Sets quotas of an entity: of the one of a row, or of one that is named here. */
export function SetQuotas({ row, close, done }) {
  const [kind, setKind] = useState("user");
  const [names, setNames] = useState({});
  const [areAny, setAreAny] = useState({});
  const before = row?.quotas ?? {};
  const entity = row?.entity ?? KINDS[kind].types.map((type) => ({ type, name: areAny[type] ? null : (names[type] ?? "") }));
  const known = quotasOf(entity);
  const [texts, setTexts] = useState(Object.fromEntries(known.filter((name) => name in before).map((name) => [name, QUOTAS[name].field(before[name])])));
  /** The quotas whose field has changed. An empty field removes one. */
  const changed = () => {
    const quotas = {};
    for (const name of known) {
      const text = (texts[name] ?? "").trim();
      if (text !== "") quotas[name] = QUOTAS[name].parse(text);
      else if (name in before) quotas[name] = null;
    }
    if (Object.keys(quotas).length === 0) throw new Error("give at least one quota");
    return { entity, quotas };
  };
  return html`
    <${ChangeDialog} title=${row ? `Quotas of ${entityText(entity)}` : "Set a quota"} verb="Set" close=${close} done=${done}
      inputs=${[entity, texts]} plan=${async () => api.alterQuotas({ ...changed(), validate_only: true })}
      act=${async () => api.alterQuotas(changed())} show=${(plan) => html`<${Changes} changes=${plan.changes} />`}>
      ${!row &&
      html`
        <${Field} id="quota-kind" label="Of">
          <select id="quota-kind" autofocus value=${kind} onChange=${(event) => setKind(event.target.value)}>
            ${Object.entries(KINDS).map(([key, { text }]) => html`<option value=${key}>${text}</option>`)}
          </select>
        <//>
        ${KINDS[kind].types.map(
          (type) => html`
            <${Field} key=${type} id=${`quota-${type}`} label=${PARTS[type].label}>
              <input id=${`quota-${type}`} required autocomplete="off" spellcheck=${false} disabled=${areAny[type]}
                value=${areAny[type] ? "" : (names[type] ?? "")} onInput=${(event) => setNames({ ...names, [type]: event.target.value })} />
              <label class="check">
                <input type="checkbox" checked=${areAny[type]} onChange=${(event) => setAreAny({ ...areAny, [type]: event.target.checked })} />
                ${PARTS[type].any}
              </label>
            <//>
          `,
        )}
      `}
      ${known.map(
        (name, index) => html`
          <${Field} key=${name} id=${`quota-${name}`} label=${QUOTAS[name].label} hint=${QUOTAS[name].hint}>
            <input id=${`quota-${name}`} autocomplete="off" spellcheck=${false} aria-describedby=${`quota-${name}-hint`}
              autofocus=${Boolean(row) && index === 0} value=${texts[name] ?? ""}
              onInput=${(event) => setTexts({ ...texts, [name]: event.target.value })} />
          <//>
        `,
      )}
      <p class="hint">Empty: no quota.</p>
    <//>
  `;
}

/** Removes all quotas of an entity. */
export function RemoveQuotas({ row, close, done }) {
  const body = { entity: row.entity, quotas: Object.fromEntries(Object.keys(row.quotas).map((name) => [name, null])) };
  return html`
    <${ChangeDialog} title=${`Remove quotas of ${entityText(row.entity)}`} verb="Remove" danger close=${close} done=${done}
      plan=${() => api.alterQuotas({ ...body, validate_only: true })} act=${() => api.alterQuotas(body)}
      show=${(plan) => html`<${Changes} changes=${plan.changes} />`} />
  `;
}
