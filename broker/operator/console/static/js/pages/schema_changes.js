// Dialogs that register schemas, set levels of compatibility, and delete versions and subjects.
import { api } from "../api.js";
import { Field, State } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { pretty } from "../components/payload.js";
import { count } from "../format.js";
import { html, useState } from "../html.js";
import { payloadOf } from "./schema_names.js";

const TYPES = [
  ["AVRO", "Avro"],
  ["JSON", "JSON Schema"],
  ["PROTOBUF", "Protobuf"],
];
/** Levels, and what each says of a new version. */
const LEVELS = {
  BACKWARD: "It reads what was written with the last one: upgrade consumers first.",
  BACKWARD_TRANSITIVE: "It reads what was written with all earlier ones: upgrade consumers first.",
  FORWARD: "The last one reads what is written with it: upgrade producers first.",
  FORWARD_TRANSITIVE: "All earlier ones read what is written with it: upgrade producers first.",
  FULL: "It and the last one read what is written with the other: upgrade clients in any order.",
  FULL_TRANSITIVE: "It and all earlier ones read what is written with the others: upgrade clients in any order.",
  NONE: "It may be anything.",
};

/** Return the references of a text with a `name subject version` a line. Throws Error with the line that is none. */
function parseReferences(text) {
  return text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => {
      const [, name, subject, version] = /^\s*(\S+)\s+(\S.*?)\s+(\d+)\s*$/.exec(line) ?? [];
      if (version === undefined) throw new Error(`references: expected name subject version, found “${line}”`);
      return { name, subject, version: Number(version) };
    });
}

/** What the registry's last messages say: the version that a schema was compared with, its text, and the level. */
const COMPARED = /^\{(oldSchemaVersion|oldSchema|compatibility): '?(.*?)'?\}$/s;

/** The registry's verdict on a schema. */
function Verdict({ plan }) {
  if (plan.is_compatible) return html`<p><${State} kind="good">The schema is compatible.<//></p>`;
  const reasons = plan.messages.filter((message) => !COMPARED.test(message));
  const compared = Object.fromEntries(plan.messages.map((message) => COMPARED.exec(message)).filter(Boolean).map(([, name, value]) => [name, value]));
  return html`
    <p>
      <${State} kind="bad">
        ${compared.oldSchemaVersion
          ? `The schema is not compatible (${compared.compatibility}) with version ${compared.oldSchemaVersion}, and would be refused.`
          : "The schema would be refused."}
      <//>
    </p>
    <ul class="reasons">${reasons.map((reason) => html`<li>${reason}</li>`)}</ul>
  `;
}

/** `subject`: one that gets a new version, which begins as `version` is; null: a new one. */
export function RegisterSchema({ subject, version, close, done }) {
  const [name, setName] = useState(subject ?? "");
  const [type, setType] = useState(version?.schemaType ?? "AVRO");
  const [schema, setSchema] = useState(version ? pretty(payloadOf(version)) : "");
  const [references, setReferences] = useState(
    (version?.references ?? []).map((each) => `${each.name} ${each.subject} ${each.version}`).join("\n"),
  );
  const body = () => ({ schemaType: type, schema, references: parseReferences(references) });
  const set = (use) => (event) => use(event.target.value);
  return html`
    <${ChangeDialog} title=${subject === null ? "Register a schema" : `New version of ${subject}`} verb="Register" wide close=${close}
      done=${({ id }) => done({ name, id })} inputs=${[name, type, schema, references]} allows=${(plan) => plan.is_compatible}
      plan=${async () => api.checkSchema(name, body())} act=${async () => api.registerSchema(name, body())}
      show=${(plan) => html`<${Verdict} plan=${plan} />`}>
      ${subject === null &&
      html`<${Field} id="schema-subject" label="Subject" hint="For records of a topic: its name with -value or -key.">
        <input id="schema-subject" required autocomplete="off" spellcheck=${false} autofocus aria-describedby="schema-subject-hint"
          value=${name} onInput=${set(setName)} />
      <//>`}
      <${Field} id="schema-type" label="Type">
        <select id="schema-type" value=${type} onChange=${set(setType)}>
          ${TYPES.map(([value, text]) => html`<option value=${value}>${text}</option>`)}
        </select>
      <//>
      <${Field} id="schema-text" label="Schema">
        <textarea id="schema-text" rows="14" required spellcheck=${false} autofocus=${subject !== null} value=${schema} onInput=${set(setSchema)}></textarea>
      <//>
      <${Field} id="schema-references" label="References" hint="One name subject version a line; the name is what the schema uses.">
        <textarea id="schema-references" rows="2" spellcheck=${false} aria-describedby="schema-references-hint"
          value=${references} onInput=${set(setReferences)}></textarea>
      <//>
    <//>
  `;
}

/** `subject`: one, or null for the registry. `level`: what applies now. `inherited`: what applies without a level of its own. */
export function SetLevel({ subject, level, inherited, close, done }) {
  const [chosen, setChosen] = useState(level);
  const show = () => html`
    <dl class="pairs"><div><dt>Compatibility</dt><dd>${level} → <b>${chosen || inherited}</b></dd></div></dl>
    <p>${subject === null ? "It applies to new versions of all subjects without a level of their own." : "It applies to new versions only."}</p>
  `;
  return html`
    <${ChangeDialog} title=${subject === null ? "Compatibility of the registry" : `Compatibility of ${subject}`} verb="Set the level" close=${close}
      done=${done} inputs=${chosen} plan=${async () => chosen} show=${show}
      act=${() => (chosen === "" ? api.withdrawLevel(subject) : api.setLevel(subject, chosen))}>
      <${Field} id="schema-level" label="A new version" hint=${LEVELS[chosen] ?? "It follows the level that is not of its own."}>
        <select id="schema-level" autofocus aria-describedby="schema-level-hint" value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
          ${Object.keys(LEVELS).map((each) => html`<option value=${each}>${each}</option>`)}
          <option value="">As ${inherited}</option>
        </select>
      <//>
    <//>
  `;
}

/** Deletes a version; for good, if it is deleted already. */
export function DeleteVersion({ subject, version, close, done }) {
  const { version: number, deleted: isPermanent, id } = version;
  const show = (plan) => html`
    <p>
      ${isPermanent
        ? `Version ${number} is gone for good. Records with the id ${id} can no longer be decoded, unless another subject has the same schema.`
        : `Version ${number} is no longer listed, and new versions are not compared with it. Its schema can still be read by its id, ${id}.`}
    </p>
    ${plan.referring > 0 && html`<p class="warning-line">${count(plan.referring, "schema refers", "schemas refer")} to it, so it has to stay.</p>`}
  `;
  return html`
    <${ChangeDialog} title=${`Delete version ${number} of ${subject}${isPermanent ? " for good" : ""}`} verb="Delete the version" danger
      confirm=${isPermanent ? subject : undefined} close=${close} done=${done} allows=${(plan) => plan.referring === 0}
      plan=${async () => ({ referring: (await api.referringIds(subject, number, isPermanent)).length })}
      act=${() => api.deleteVersion(subject, number, isPermanent)} show=${show} />
  `;
}

/** Deletes a subject with all its versions; for good, if all of them are deleted already. */
export function DeleteSubject({ subject, isPermanent, close, done }) {
  const show = (plan) => html`
    <p>
      ${isPermanent
        ? `${count(plan.versions, "version is", "versions are")} gone for good. Records with these ids can no longer be decoded, unless other subjects have the same schemas.`
        : `The subject with ${count(plan.versions, "version")} is no longer listed, and loses its level. Its schemas can still be read by their ids.`}
    </p>
  `;
  return html`
    <${ChangeDialog} title=${`Delete ${subject}${isPermanent ? " for good" : ""}`} verb="Delete the subject" danger confirm=${isPermanent ? subject : undefined}
      close=${close} done=${done} plan=${async () => ({ versions: (await api.versions(subject, { deleted: isPermanent ? "true" : "" })).length })}
      act=${() => api.deleteSubject(subject, isPermanent)} show=${show} />
  `;
}
