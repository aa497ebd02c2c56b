// Keys, values and headers of records, as text that can be read.
import { html } from "../html.js";
import { bytes } from "../format.js";

const PREVIEW_CHARACTERS = 160;
/** Formats whose text is JSON. */
const JSON_FORMATS = new Set(["json", "avro", "protobuf"]);

/** Return JSON with line breaks; what is no JSON (the text was cut, say) as it is. */
export function pretty(payload) {
  if (!JSON_FORMATS.has(payload.format)) return payload.text;
  try {
    // A number that JavaScript would round is shown as it was sent: then the text is left alone.
    const parsed = JSON.parse(payload.text);
    const again = JSON.stringify(parsed);
    const isSame = again === payload.text.replace(/("(?:\\.|[^"\\])*")|\s+/g, "$1"); // without white space
    return isSame || !/\d{16}|\d\.\d{15}|e[+-]?\d/i.test(payload.text) ? JSON.stringify(parsed, null, 2) : payload.text;
  } catch {
    return payload.text;
  }
}

/** One line of a payload, for lists. */
export function PayloadLine({ payload }) {
  if (payload === null) return html`<span class="null">null</span>`;
  const text = payload.text.slice(0, PREVIEW_CHARACTERS).replace(/\s+/g, " ");
  if (payload.size === 0) return html`<span class="null">empty</span>`;
  return html`<span class="payload-line">${text}${payload.text.length > PREVIEW_CHARACTERS ? " …" : ""}</span>`;
}

/** Return the parts of a JSON text as [class, text], for colours. */
function tokens(text) {
  const pattern = /("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > end) parts.push(["", text.slice(end, match.index)]);
    if (match[2] !== undefined) parts.push(["j-name", match[1]], ["", match[2]]);
    else parts.push([match[1] ? "j-text" : "j-value", match[0]]);
    end = match.index + match[0].length;
  }
  parts.push(["", text.slice(end)]);
  return parts;
}

const COLOURED_CHARACTERS_MAX = 20_000;

/** A whole payload, with what is known about it. */
export function Payload({ label, payload }) {
  if (payload === null) {
    return html`<div class="payload"><h2>${label}</h2><p class="null">null</p></div>`;
  }
  const text = pretty(payload);
  const isColoured = JSON_FORMATS.has(payload.format) && text.length <= COLOURED_CHARACTERS_MAX;
  return html`
    <div class="payload">
      <h2>
        ${label}
        <small>
          ${payload.format}, ${bytes(payload.size)}${payload.schema ? `, schema ${payload.schema.id}` : ""}${payload.truncated
            ? ", cut"
            : ""}
        </small>
      </h2>
      ${payload.error && html`<p class="warning-line">${payload.error}</p>`}
      ${payload.size === 0
        ? html`<p class="null">empty</p>`
        : html`<pre tabindex="0" aria-label=${label}>${isColoured
            ? tokens(text).map(([kind, part]) => (kind ? html`<span class=${kind}>${part}</span>` : part))
            : text}</pre>`}
    </div>
  `;
}
