// A dialog that produces one record: a new one, or one of the topic again.
import { api } from "../api.js";
import { ErrorLine, Field } from "../components/basics.js";
import { Dialog } from "../components/dialog.js";
import { textOf } from "../files.js";
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

/** Return the fields for a whole record; null if it is not what the fields could send. */
function fieldsOf({ partition, key, value, headers }) {
  const texts = headers.map((header) => ({ name: header.name, value: header.value === null ? null : textOf(header.value) }));
  const isTrimmed = (text) => text === text.trim() && !text.includes("\n");
  const isPlain = texts.every(({ name, value: text }) => text !== null && name && !name.includes(":") && isTrimmed(name) && isTrimmed(text));
  const [keyText, valueText] = [key, value].map((each) => (each === null ? "" : textOf(each)));
  // A field for one line leaves out line ends, and one for several changes those of Windows.
  if (!isPlain || keyText === null || valueText === null || key === "" || /[\r\n]/.test(keyText) || valueText.includes("\r")) return null;
  return {
    partition: String(partition),
    key: keyText,
    value: valueText,
    hasValue: value !== null,
    headers: texts.map((header) => `${header.name}: ${header.value}`).join("\n"),
  };
}

/** `original`: a whole record of the API to begin with; null for a new one. One that is no text is sent as it is. */
export function ProduceRecord({ topic, partitions, original, close, done }) {
  const fields = original ? fieldsOf(original) : NOTHING;
  const isText = fields !== null;
  const [record, setRecord] = useState(fields ?? { ...NOTHING, partition: String(original.partition) });
  const [state, setState] = useState({ error: null, busy: false });
  const set = (name) => (event) => setRecord({ ...record, [name]: event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ error: null, busy: true });
    try {
      const body = {
        ...(record.partition === "" ? {} : { partition: Number(record.partition) }),
        ...(isText ? contentOf(record) : { key: original.key, value: original.value, headers: original.headers, encoding: "base64" }),
      };
      done(await api.produce(topic, body));
    } catch (error) {
      setState({ error, busy: false });
    }
  };
  return html`
    <${Dialog} title=${original ? `Produce again to ${topic}` : `Produce to ${topic}`} close=${close}>
      <form onSubmit=${submit}>
        <div class="dialog-body">
          <${Field} id="produce-partition" label="Partition">
            <select id="produce-partition" value=${record.partition} onChange=${set("partition")}>
              <option value="">Chosen by the key</option>
              ${partitions.map((index) => html`<option value=${String(index)}>${index}</option>`)}
            </select>
          <//>
          ${isText
            ? html`<${Content} record=${record} setRecord=${setRecord} />`
            : html`<p>Key, value and headers are sent as they are: not all of them are plain text.</p>`}
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

/** Return the content of a record as the API takes it. */
function contentOf(record) {
  return {
    ...(record.key !== "" ? { key: record.key } : {}),
    ...(record.hasValue ? { value: record.value } : {}),
    headers: parseHeaders(record.headers),
    encoding: "text",
  };
}

/** The fields for key, value and headers. */
function Content({ record, setRecord }) {
  const set = (name) => (event) => setRecord({ ...record, [name]: event.target.value });
  return html`
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
  `;
}
