// Dialogs that commit and drop a table.
import { api } from "../api.js";
import { ChangeDialog } from "../components/dialog.js";
import { bytes, count } from "../format.js";
import { html, useState } from "../html.js";

/** Commits what the table lacks now, instead of after the interval. */
export function CommitTable({ table, close, done }) {
  const show = (found) => html`
    <p>
      ${found.lag === 0
        ? "The table has all that is committed in its topic."
        : `${found.lag === null ? "What" : count(found.lag, "offset")} the table lacks is uploaded and becomes rows of a new snapshot.`}
    </p>
  `;
  return html`
    <${ChangeDialog} title=${`Commit ${table.name} now`} verb="Commit" close=${close} done=${done}
      plan=${() => api.table(table.name)} act=${() => api.commitTable(table.name)} show=${show} />
  `;
}

export function DropTable({ table, close, done }) {
  const [keepsFiles, setKeepsFiles] = useState(false);
  const show = (plan) => html`
    <p>
      ${count(plan.rows, "row")} in ${count(plan.files, "file")} (${bytes(plan.bytes)})
      ${plan.keep_files ? "stay in the store, where nothing looks after them any more." : "are deleted."}
    </p>
    ${plan.disabled_topic !== null && html`<p>The topic ${plan.disabled_topic} keeps its records, and is no table any more: <code>table.enable=false</code>.</p>`}
  `;
  return html`
    <${ChangeDialog} title=${`Drop ${table.name}`} verb="Drop the table" danger confirm=${table.name} close=${close} done=${done} inputs=${keepsFiles}
      plan=${() => api.dropTable(table, keepsFiles, true)} act=${() => api.dropTable(table, keepsFiles, false)} show=${show}>
      <label class="check">
        <input type="checkbox" autofocus checked=${keepsFiles} onChange=${(event) => setKeepsFiles(event.target.checked)} />
        Leave the files in the store
      </label>
    <//>
  `;
}
