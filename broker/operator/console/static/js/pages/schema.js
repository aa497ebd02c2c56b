// One subject of the schema registry: its versions, the text of one of them, and what it refers to.
import { api } from "../api.js";
import { Empty, Figures, isMissing, Name, PageError, PageHead, Section, State, Waiting } from "../components/basics.js";
import { Choice } from "../components/filters.js";
import { Payload } from "../components/payload.js";
import { copyText } from "../files.js";
import { number } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify } from "../store.js";
import { payloadOf, topicOf, typeOf } from "./schema_names.js";

export function SchemaPage({ subject, query }) {
  const poll = usePoll((signal) => loadSubject(subject, signal), 10_000, [subject]);
  const found = isMissing(poll) ? null : poll.data;
  const chosen = found && (found.versions.find((each) => String(each.version) === query.version)?.version ?? found.newest);
  const version = usePoll(async (signal) => (chosen === null ? null : loadVersion(subject, chosen, signal)), 0, [subject, chosen]);
  return html`
    <${PageHead} title=${subject} crumbs=${[["Schemas", href(["schemas"])]]} />
    ${found === null
      ? html`<${Waiting} poll=${poll} missing=${html`<p><a href=${href(["schemas"])}>All subjects</a></p>`} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <${Summary} subject=${subject} found=${found} />
          <${Section} id="schema" title="Schema" actions=${version.data && html`<button type="button" onClick=${() => copy(version.data)}>Copy</button>`}>
            <div class="filter-form">
              <${Choice} label="Version" choices=${found.versions.toReversed().map((each) => [String(each.version), nameOf(each, found)])} value=${String(chosen)}
                onChange=${(event) => go(["schemas", subject], { ...query, version: event.target.value }, { replace: true })} />
            </div>
            ${version.data === null ? html`<${Waiting} poll=${version} />` : html`<${Version} version=${version.data} />`}
          <//>
        `}
  `;
}

/** Load the versions of a subject, deleted ones too, and the levels that apply. `newest`: the one that is shown first. */
async function loadSubject(subject, signal) {
  const [all, deleted, level, registryLevel] = await Promise.all([
    api.versions(subject, { deleted: "true" }, signal),
    api.versions(subject, { deletedOnly: "true" }, signal),
    api.level(subject, signal),
    api.level(null, signal),
  ]);
  const versions = all.map((version) => ({ version, deleted: deleted.includes(version) }));
  const newest = (versions.findLast((each) => !each.deleted) ?? versions.at(-1)).version;
  return { versions, newest, level, registryLevel };
}

/** Load a version, with the versions that refer to it. */
async function loadVersion(subject, version, signal) {
  const [found, ids] = await Promise.all([
    api.schemaVersion(subject, version, true, signal),
    api.referringIds(subject, version, signal),
  ]);
  const referring = await Promise.all(ids.map((id) => api.versionsOfId(id, signal)));
  return { ...found, referring: referring.flat() };
}

/** Return the text that stands for a version in a choice. */
function nameOf({ version, deleted }, { newest }) {
  if (deleted) return `${version}, deleted`;
  return version === newest ? `${version}, the newest` : String(version);
}

async function copy(version) {
  if (await copyText(version.schema)) notify(`The schema of version ${version.version} is copied.`);
}

function Summary({ subject, found }) {
  const named = topicOf(subject);
  const live = found.versions.filter((each) => !each.deleted).length;
  return html`
    <${Figures}
      items=${[
        ["Versions", number(live), live < found.versions.length && `and ${number(found.versions.length - live)} deleted`],
        [
          "Compatibility",
          html`<span class="whole">${found.level}</span>`,
          found.level === found.registryLevel ? "as the registry's" : `the registry's is ${found.registryLevel}`,
        ],
        [
          "Topic",
          named ? html`<a href=${href(["topics", named.topic])}><${Name} text=${named.topic} /></a>` : "–",
          named ? `its ${named.part}s, by the subject's name` : "the subject is not named after one",
        ],
      ]}
    />
    ${live === 0 &&
    html`<${Empty} title="The subject is deleted.">
      <p>Its schemas can still be read by their ids. A new version brings it back.</p>
    <//>`}
  `;
}

function Version({ version }) {
  const references = version.references ?? [];
  return html`
    <dl class="pairs schema-facts">
      <div><dt>Id</dt><dd>${version.id}${version.deleted && html` <${State} kind="off">deleted<//>`}</dd></div>
      <div><dt>Type</dt><dd>${typeOf(version)}</dd></div>
      ${references.length > 0 && html`<div><dt>Refers to</dt><dd><${Versions} rows=${references} /></dd></div>`}
      ${version.referring.length > 0 && html`<div><dt>Referred to by</dt><dd><${Versions} rows=${version.referring} /></dd></div>`}
    </dl>
    <${Payload} label=${`Version ${version.version}`} payload=${payloadOf(version)} />
  `;
}

/** Links to versions: [{subject, version, name?}, ...]; a reference has the name that the schema uses for it. */
function Versions({ rows }) {
  return html`
    <ul class="lines">
      ${rows.map(
        (row) => html`
          <li>
            <a href=${href(["schemas", row.subject], { version: row.version })}><${Name} text=${row.subject} /> ${row.version}</a>
            ${row.name && row.name !== row.subject && html` <small>as <${Name} text=${row.name} /></small>`}
          </li>
        `,
      )}
    </ul>
  `;
}
