// A dialog that produces one record.
import { api } from "../api.js";
import { ErrorLine, Field } from "../components/basics.js";
import { Dialog } from "../components/dialog.js";
import { html, useState } from "../html.js";

const NOTHING = { partition: "", key: "", value: "", hasValue: true, headers: "" };

/** Return headers of a text with a `name: value` a line. Throws Error with the line that is none. */
function parseHeaders(text) {
  return text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => {
      const at = line.indexOf(":");
      if (at <= 0) throw new Error(`headers: expected name: value, found “${line}”`);
      return { name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
    });
}

export function ProduceRecord({ topic, partitions, close, done }) {
  const [record, setRecord] = useState(NOTHING);
  const [state, setState] = useState({ error: null, busy: false });
  const set = (name) => (event) => setRecord({ ...record, [name]: event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ error: null, busy: true });
    try {
      const body = {
        ...(record.partition === "" ? {} : { partition: Number(record.partition) }),
        ...(record.key !== "" ? { key: record.key } : {}),
        ...(record.hasValue ? { value: record.value } : {}),
        headers: parseHeaders(record.headers),
        encoding: "text",
      };
      done(await api.produce(topic, body));
    } catch (error) {
      setState({ error, busy: false });
    }
  };
  return html`
    <${Dialog} title=${`Produce to ${topic}`} close=${close}>
      <form onSubmit=${submit}>
        <div class="dialog-body">
          <${Field} id="produce-partition" label="Partition">
            <select id="produce-partition" value=${record.partition} onChange=${set("partition")}>
              <option value="">Chosen by the key</option>
              ${partitions.map((index) => html`<option value=${String(index)}>${index}</option>`)}
            </select>
          <//>
          <${Field} id="produce-key" label="Key" hint="Empty: no key.">
            <input id="produce-key" autocomplete="off" spellcheck=${false} aria-describedby="produce-key-hint"
              value=${record.key} onInput=${set("key")} />
          <//>
          <${Field} id="produce-value" label="Value">
            <textarea id="produce-value" rows="7" spellcheck=${false} autofocus disabled=${!record.hasValue}
              value=${record.value} onInput=${set("value")}></textarea>
          <//>
          <label class="check">
            <input type="checkbox" checked=${!record.hasValue} onChange=${(event) => setRecord({ ...record, hasValue: !event.target.checked })} />
            No value (deletes the key in a compacted topic)
          </label>
          <${Field} id="produce-headers" label="Headers" hint="One name: value a line.">
            <textarea id="produce-headers" rows="2" spellcheck=${false} aria-describedby="produce-headers-hint"
              value=${record.headers} onInput=${set("headers")}></textarea>
          <//>
          <${ErrorLine} error=${state.error} />
        </div>
        <footer class="dialog-foot">
          <button type="button" onClick=${close}>Cancel</button>
          <button type="submit" class="primary" aria-disabled=${state.busy}>Produce</button>
        </footer>
      </form>
    <//>
  `;
}
