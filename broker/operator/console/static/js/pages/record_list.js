// A list of records, each of which can be opened: with a click anywhere in its row, or with its button from the keyboard.
import { api } from "../api.js";
import { bytesOf, copyText, saveFile } from "../files.js";
import { html, useState } from "../html.js";
import { Time } from "../components/basics.js";
import { Payload, PayloadLine } from "../components/payload.js";
import { bytes, number } from "../format.js";
import { href } from "../router.js";
import { notify, useMayOperate } from "../store.js";

/** Identity of a record in its topic. */
export const recordKey = ({ partition, offset }) => `${partition}/${offset}`;

const ENDINGS = { json: "json", avro: "avro", protobuf: "pb", text: "txt" };

/** Save records as they are shown, one in JSON a line. */
export const saveRecords = (topic, records) =>
  saveFile(`${topic}.jsonl`, records.map((record) => `${JSON.stringify(record)}\n`), "application/jsonl");

/** `produceAgain(record)` is called with a whole record, of the API. */
export function RecordList({ topic, records, produceAgain }) {
  const [opened, setOpened] = useState(new Set());
  const toggle = (key) => {
    const changed = new Set(opened);
    if (!changed.delete(key)) changed.add(key);
    setOpened(changed);
  };
  const onRow = (key) => {
    if (getSelection().isCollapsed) toggle(key); // who selects a text wants to copy it
  };
  return html`
    <div class="table-scroll" role="group" aria-label="Records" tabindex="0">
      <table class="records">
        <caption class="visually-hidden">Records</caption>
        <thead>
          <tr>
            <th scope="col">Partition / offset</th>
            <th scope="col" class="wide">Time</th>
            <th scope="col">Key</th>
            <th scope="col">Value</th>
            <th scope="col" class="numeric wide">Size</th>
          </tr>
        </thead>
        <tbody>
          ${records.map((record) => {
            const key = recordKey(record);
            const isOpen = opened.has(key);
            return html`
              <tr key=${key} class="record ${isOpen ? "opened" : ""}" onClick=${() => onRow(key)}>
                <th scope="row">
                  <button type="button" class="row-button" aria-expanded=${isOpen}>
                    <span class="chevron" aria-hidden="true"></span>${record.partition} / ${number(record.offset)}
                  </button>
                </th>
                <td class="wide"><${Time} at_ms=${record.timestamp_ms} /></td>
                <td class="key-cell"><${PayloadLine} payload=${record.key} /></td>
                <td class="value-cell"><${PayloadLine} payload=${record.value} /></td>
                <td class="numeric wide">${bytes(record.size)}</td>
              </tr>
              ${isOpen && html`<tr key=${`${key} details`} class="details"><td colspan="5"><${Details} topic=${topic} record=${record} produceAgain=${produceAgain} /></td></tr>`}
            `;
          })}
        </tbody>
      </table>
    </div>
  `;
}

/** What can be done with a record. */
function Actions({ topic, record, produceAgain }) {
  const mayOperate = useMayOperate();
  const { partition, offset, value } = record;
  const withWhole = (use) => async () => {
    try {
      use(await api.wholeRecord(topic, partition, offset));
    } catch (error) {
      notify(error.message, "bad");
    }
  };
  const copy = async () => {
    if (await copyText(value.text)) notify("The value is copied.");
  };
  const download = withWhole((whole) =>
    saveFile(`${topic}-${partition}-${offset}.${ENDINGS[value.format] ?? "bin"}`, [bytesOf(whole.value)], "application/octet-stream"),
  );
  return html`
    <div class="actions">
      ${value !== null &&
      html`
        <button type="button" class="small" onClick=${copy}>Copy value${value.truncated ? " as shown" : ""}</button>
        <button type="button" class="small" onClick=${download}>Download value</button>
      `}
      ${mayOperate && html`<button type="button" class="small" onClick=${withWhole(produceAgain)}>Produce again</button>`}
    </div>
  `;
}

function Details({ topic, record, produceAgain }) {
  return html`
    <div class="record-details">
      <${Actions} topic=${topic} record=${record} produceAgain=${produceAgain} />
      <dl class="pairs">
        <div><dt>Partition</dt><dd><a href=${href(["topics", topic, "partitions", record.partition])}>${record.partition}</a></dd></div>
        <div><dt>Offset</dt><dd>${number(record.offset)}</dd></div>
        <div><dt>Timestamp</dt><dd><${Time} at_ms=${record.timestamp_ms} /> (${record.timestamp_type})</dd></div>
        <div><dt>Size</dt><dd>${bytes(record.size)}</dd></div>
        ${record.producer_id !== null &&
        html`<div><dt>Producer</dt><dd>${record.producer_id}${record.transactional ? ", in a transaction" : ""}</dd></div>`}
      </dl>
      <${Payload} label="Key" payload=${record.key} />
      <${Payload} label="Value" payload=${record.value} />
      ${record.headers.length > 0 &&
      html`<div class="payload">
        <h2>Headers</h2>
        <dl class="pairs">
          ${record.headers.map(
            (header) => html`<div><dt>${header.name}</dt><dd><code>${header.value === null ? "null" : header.value.text}</code></dd></div>`,
          )}
        </dl>
        ${record.more_headers && html`<p class="note">There are more headers.</p>`}
      </div>`}
    </div>
  `;
}
