// One subject of the schema registry: its versions, the text of one of them, and what it refers to.
import { api } from "../api.js";
import { Empty, Figures, isMissing, Name, PageError, PageHead, Section, State, Waiting } from "../components/basics.js";
import { Choice } from "../components/filters.js";
import { Difference } from "../components/difference.js";
import { Payload, pretty } from "../components/payload.js";
import { copyText } from "../files.js";
import { number } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { DeleteSubject, DeleteVersion, RegisterSchema, SetLevel } from "./schema_changes.js";
import { payloadOf, topicOf, typeOf } from "./schema_names.js";

export function SchemaPage({ subject, query }) {
  const poll = usePoll((signal) => loadSubject(subject, signal), 10_000, [subject]);
  const found = isMissing(poll) ? null : poll.data;
  const chosen = found && (found.versions.find((each) => String(each.version) === query.version)?.version ?? found.newest);
  const other = useOther(subject, found, chosen, query.with);
  const isGone = found?.versions.find((each) => each.version === chosen).deleted; // which the version says, too
  const version = usePoll(async (signal) => (chosen === null ? null : loadVersion(subject, chosen, signal)), 0, [subject, chosen, isGone]);
  const [dialog, setDialog] = useState(null);
  const mayChange = useMayOperate() && found && version.data;
  const close = () => setDialog(null);
  const changed = (text, query = {}) => {
    close();
    notify(text);
    go(["schemas", subject], query, { replace: true });
    poll.refresh();
  };
  const isDeleted = found?.versions.every((each) => each.deleted);
  const subjectDeleted = () => {
    if (!isDeleted) return changed(`Subject ${subject} is deleted.`);
    notify(`Subject ${subject} is deleted for good.`);
    return go(["schemas"]); // the page is about nothing now
  };
  return html`
    <${PageHead} title=${subject} crumbs=${[["Schemas", href(["schemas"])]]}>
      ${mayChange &&
      html`
        <button type="button" class="primary" data-key="n" onClick=${() => setDialog("register")}>Register a version</button>
        <button type="button" onClick=${() => setDialog("level")}>Set the compatibility</button>
        <button type="button" class="danger-quiet" onClick=${() => setDialog("delete")}>${isDeleted ? "Delete for good" : "Delete"}</button>
      `}
    <//>
    ${found === null
      ? html`<${Waiting} poll=${poll} missing=${html`<p><a href=${href(["schemas"])}>All subjects</a></p>`} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <${Summary} subject=${subject} found=${found} />
          <${Section} id="schema" title="Schema" actions=${version.data && html`<${Actions} version=${version.data} remove=${mayChange && !isDeleted && (() => setDialog("version"))} />`}>
            <div class="filter-form">
              <${Choice} label="Version" choices=${found.versions.toReversed().map((each) => [String(each.version), nameOf(each, found)])} value=${String(chosen)}
                onChange=${(event) => go(["schemas", subject], { ...query, version: event.target.value }, { replace: true })} />
              ${found.versions.length > 1 &&
              html`<${Choice} label="Compared with" choices=${[["", "nothing"], ...others(found, chosen)]} value=${query.with ?? ""}
                onChange=${(event) => go(["schemas", subject], { ...query, with: event.target.value }, { replace: true })} />`}
            </div>
            ${version.data === null ? html`<${Waiting} poll=${version} />` : html`<${Version} version=${version.data} other=${other} />`}
          <//>
        `}
    ${dialog === "register" &&
    html`<${RegisterSchema} subject=${subject} version=${version.data} close=${close} done=${({ id }) => changed(`The schema has the id ${id}.`)} />`}
    ${dialog === "level" &&
    html`<${SetLevel} subject=${subject} level=${found.level} inherited=${`the registry: ${found.registryLevel}`} close=${close} done=${() => changed("The level is set.", query)} />`}
    ${dialog === "version" &&
    html`<${DeleteVersion} subject=${subject} version=${version.data} close=${close} done=${() => changed(`Version ${chosen} is deleted.`)} />`}
    ${dialog === "delete" && html`<${DeleteSubject} subject=${subject} isPermanent=${isDeleted} close=${close} done=${subjectDeleted} />`}
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
    api.referringIds(subject, version, false, signal),
  ]);
  const referring = await Promise.all(ids.map((id) => api.versionsOfId(id, signal)));
  return { ...found, referring: referring.flat() };
}

/** Return the text that stands for a version in a choice. */
function nameOf({ version, deleted }, { newest }) {
  if (deleted) return `${version}, deleted`;
  return version === newest ? `${version}, the newest` : String(version);
}

/** Return the versions that a version can be compared with, as choices. */
const others = (found, chosen) => found.versions.toReversed().filter((each) => each.version !== chosen).map((each) => [String(each.version), nameOf(each, found)]);

/** Hook: the version that the chosen one is compared with; null: none, or not loaded yet. */
function useOther(subject, found, chosen, text) {
  const version = found?.versions.find((each) => String(each.version) === text)?.version ?? null;
  const isWanted = version !== null && version !== chosen;
  const load = async (signal) => (isWanted ? api.schemaVersion(subject, version, true, signal) : null);
  return usePoll(load, 0, [subject, isWanted && version]).data;
}

/** What can be done with a version. `remove`: opens the dialog that deletes it, or is false. */
function Actions({ version, remove }) {
  return html`
    <button type="button" class="small" onClick=${() => copy(version)}>Copy</button>
    ${remove &&
    html`<button type="button" class="small danger-quiet" onClick=${remove}>${`Delete version ${version.version}${version.deleted ? " for good" : ""}`}</button>`}
  `;
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

/** A version, and how another one differs from it. */
function Version({ version, other }) {
  const [before, after] = other && other.version > version.version ? [version, other] : [other, version];
  const references = version.references ?? [];
  return html`
    <dl class="pairs schema-facts">
      <div><dt>Id</dt><dd>${version.id}${version.deleted && html` <${State} kind="off">deleted<//>`}</dd></div>
      <div><dt>Type</dt><dd>${typeOf(version)}</dd></div>
      ${references.length > 0 && html`<div><dt>Refers to</dt><dd><${Versions} rows=${references} /></dd></div>`}
      ${version.referring.length > 0 && html`<div><dt>Referred to by</dt><dd><${Versions} rows=${version.referring} /></dd></div>`}
    </dl>
    ${other
      ? html`<${Difference} label=${`From version ${before.version} to ${after.version}`} before=${pretty(payloadOf(before))} after=${pretty(payloadOf(after))} />`
      : html`<${Payload} label=${`Version ${version.version}`} payload=${payloadOf(version)} />`}
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
