// The subjects of the schema registry, with search.
import { api } from "../api.js";
import { Command, Empty, Figures, Name, PageError, PageHead, State, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { firstSchema } from "../commands.js";
import { count, number } from "../format.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { go, href } from "../router.js";
import { notify, useMayOperate } from "../store.js";
import { RegisterSchema, SetLevel } from "./schema_changes.js";
import { typeOf } from "./schema_names.js";

/** Subjects that are shown at first, and more at a time: the registry is asked about each of them. */
const ROWS = 50;
const DETAILS_MS = 30_000;

export function SchemasPage({ query }) {
  const poll = usePoll(load, 10_000, []);
  const [limit, setLimit] = useState(ROWS);
  const [dialog, setDialog] = useState(null);
  const mayOperate = useMayOperate();
  const search = query.search ?? "";
  const showDeleted = query.deleted === "true";
  const change = (changes) => go(["schemas"], { ...query, ...changes }, { replace: true });
  const all = poll.data?.subjects ?? [];
  const found = all.filter((row) => (showDeleted || !row.deleted) && row.name.toLowerCase().includes(search.toLowerCase()));
  const shown = found.slice(0, limit);
  const details = useDetails(shown);
  const close = () => setDialog(null);
  const registered = ({ name, id }) => {
    notify(`The schema has the id ${id}.`);
    go(["schemas", name]);
  };
  const changed = () => {
    close();
    notify("The level is set.");
    poll.refresh();
    details.refresh();
  };
  return html`
    <${PageHead} title="Schemas">
      ${mayOperate &&
      poll.data &&
      html`
        <button type="button" class="primary" data-key="n" onClick=${() => setDialog("register")}>Register a schema</button>
        <button type="button" onClick=${() => setDialog("level")}>Set the compatibility</button>
      `}
    <//>
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error ?? details.error} retry=${poll.refresh} />
          <${Figures}
            items=${[
              ["Subjects", number(all.filter((row) => !row.deleted).length)],
              ["Compatibility", html`<span class="whole">${poll.data.level}</span>`, "of subjects without a level of their own"],
            ]}
          />
          <div class="filters" role="search">
            <input type="search" data-key="/" placeholder="Search by name" aria-label="Search subjects by name" value=${search}
              onInput=${(event) => change({ search: event.target.value })} />
            <label class="check">
              <input type="checkbox" checked=${showDeleted} onChange=${(event) => change({ deleted: event.target.checked ? "true" : "" })} />
              Deleted subjects (${all.filter((row) => row.deleted).length})
            </label>
            <span class="note" role="status">${count(found.length, "subject")}</span>
          </div>
          ${found.length > 0
            ? html`<${Table} caption="Subjects" columns=${columnsOf(details.of)} rows=${shown} rowKey=${(row) => row.name} />`
            : html`<${NoSubjects} search=${search} />`}
          ${found.length > shown.length &&
          html`<p class="more"><button type="button" class="small" onClick=${() => setLimit(limit + ROWS)}>Show ${count(Math.min(ROWS, found.length - limit), "more subject")}</button></p>`}
        `}
    ${dialog === "register" && html`<${RegisterSchema} subject=${null} close=${close} done=${registered} />`}
    ${dialog === "level" && html`<${SetLevel} subject=${null} level=${poll.data.level} inherited="the settings say" close=${close} done=${changed} />`}
  `;
}

/** Load the names of all subjects, and the level of the registry. */
async function load(signal) {
  const [live, deleted, level] = await Promise.all([
    api.subjects({}, signal),
    api.subjects({ deletedOnly: "true" }, signal),
    api.level(null, signal),
  ]);
  const row = (isDeleted) => (name) => ({ name, deleted: isDeleted });
  const subjects = [...live.map(row(false)), ...deleted.map(row(true))];
  return { level, subjects: subjects.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true })) };
}

/** Hook: what the registry says of the rows that are shown: {of(row), error, refresh}. What is known of others is kept. */
function useDetails(rows) {
  const [kept, setKept] = useState(new Map());
  const poll = usePoll(
    async (signal) => {
      const ask = async (row) => {
        try {
          const [latest, level] = await Promise.all([
            api.schemaVersion(row.name, "latest", row.deleted, signal),
            api.level(row.name, signal),
          ]);
          return [row.name, { ...latest, level }];
        } catch (error) {
          if (error.status !== 404) throw error;
          return [row.name, null]; // it has been deleted since
        }
      };
      const found = new Map(await Promise.all(rows.map(ask)));
      setKept((old) => new Map([...old, ...found]));
      return found;
    },
    DETAILS_MS,
    [rows],
  );
  return { of: (row) => kept.get(row.name) ?? null, error: poll.error, refresh: poll.refresh };
}

/** Columns of the table. `of(row)`: the newest version of a subject with its level; null: not known yet. */
const columnsOf = (of) => [
  {
    title: "Subject",
    cell: (row) => html`
      <a href=${href(["schemas", row.name])}><${Name} text=${row.name} /></a>
      ${row.deleted && html` <${State} kind="off">deleted<//>`}
    `,
  },
  { title: "Type", cell: (row) => (of(row) ? typeOf(of(row)) : "–") },
  { title: "Version", cell: (row) => number(of(row)?.version), numeric: true },
  { title: "Id", cell: (row) => of(row)?.id ?? "–", numeric: true, wide: true },
  { title: "Compatibility", cell: (row) => of(row)?.level ?? "–", wide: true },
];

function NoSubjects({ search }) {
  if (search) return html`<${Empty} title=${`No subject's name contains “${search}”.`} />`;
  return html`
    <${Empty} title="There are no schemas yet.">
      <p>Producers register those of their records. So does this command, for the values of a topic “greetings”:</p>
      <${Command} text=${firstSchema()} />
    <//>
  `;
}
