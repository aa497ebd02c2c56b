// Small parts that every page uses.
import { copyText } from "../files.js";
import { localTime, time } from "../format.js";
import { html, useState } from "../html.js";
import { useStore } from "../store.js";

/**
 * Parts of a name between which a line may break: an address with its port is one of them (`/10.0.0.1:9092`, `[::1]:9092`,
 * `2001:db8::1`).
 */
const NAME_PARTS =
  /\/?(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?|\[[\da-f:.]+\](?::\d{1,5})?|(?:[\da-f]{0,4}:){2,7}[\da-f]{0,4}|.{1,18}?[-._,:/@\s]+|.{1,18}/gis;

/** The head of a page: a title, and what can be done. The shell moves the focus to the title of a new page. */
export function PageHead({ title, crumbs = [], children }) {
  return html`
    <header class="page-head">
      <div>
        ${crumbs.length > 0 &&
        html`<nav class="crumbs" aria-label="Path">
          ${crumbs.map(([text, target], index) => html`${index > 0 && html`<span aria-hidden="true">/</span>`}<a href=${target}>${text}</a>`)}
        </nav>`}
        <h1 tabindex="-1"><${Name} text=${title} /></h1>
      </div>
      <div class="actions">${children}</div>
    </header>
  `;
}

/** A titled part of a page. */
export function Section({ title, note, actions, children, id }) {
  return html`
    <section class="section" aria-labelledby=${id}>
      <div class="section-head">
        <h2 id=${id}>${title}</h2>
        ${note && html`<p class="note">${note}</p>`}
        ${actions && html`<div class="actions">${actions}</div>`}
      </div>
      ${children}
    </section>
  `;
}

/** Hook: an error to show; null while the line at the top of all pages says that the node does not answer. */
function useOwn(error) {
  const isDown = useStore((state) => state.unreachableSince !== null);
  return isDown && error?.status === 0 ? null : error;
}

/** An error of a page's requests. */
export function PageError({ error, retry }) {
  return html`<${ErrorLine} error=${useOwn(error)} retry=${retry} />`;
}

/** An error as one line, with a way to try again. */
export function ErrorLine({ error, retry }) {
  if (!error) return null;
  return html`
    <div class="error-line" role="alert">
      <span>${error.message}</span>
      ${retry && html`<button type="button" class="small" onClick=${retry}>Try again</button>`}
    </div>
  `;
}

/**
 * What a page shows while its first answer is on the way, when it failed, and when the node does not have what the page is
 * about. `missing`: what can be done about that.
 */
export function Waiting({ poll, missing }) {
  const error = useOwn(poll.error);
  if (isMissing(poll)) return html`<${Empty} title=${sentence(poll.error.message)}>${missing}<//>`;
  if (error) return html`<${ErrorLine} error=${error} retry=${poll.refresh} />`;
  return html`<p class="waiting" role="status">Loading …</p>`;
}

/** Return whether the node does not have what was asked for, or has it no longer. */
export const isMissing = (poll) => poll.error?.status === 404;

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

/** A list that is empty: why, and what to do next. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;
}

/** A command that can be copied. */
export function Command({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(text))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`
    <div class="command">
      <code tabindex="0">${text}</code>
      <button type="button" class="small" onClick=${copy} aria-label="Copy the command">${copied ? "Copied" : "Copy"}</button>
    </div>
  `;
}

/** A point in time, in UTC; the pointer shows it in the browser's time zone. A line breaks between date and time only. */
export function Time({ at_ms }) {
  const text = time(at_ms);
  if (!text.endsWith("Z")) return text; // no date
  return html`<time class="numeric" datetime=${text} title=${localTime(at_ms)}><span>${text.slice(0, -14)}</span><wbr /><span>${text.slice(-14)}</span></time>`;
}

/** A name or value whose words stay whole: a line breaks after `.`, `-`, `_` and the like, and in words that are very long. */
export function Name({ text }) {
  const parts = String(text).match(NAME_PARTS) ?? [];
  return parts.map((part) => html`${part}<wbr />`);
}

/** A state as a word with a mark; the word carries the meaning, the colour only helps. */
export function State({ kind, children }) {
  return html`<span class="state ${kind}"><span class="mark" aria-hidden="true"></span>${children}</span>`;
}

/** Figures side by side: [[label, value, note?], ...]. */
export function Figures({ items }) {
  return html`
    <dl class="figures">
      ${items.map(
        ([label, value, note]) => html`
          <div class="figure">
            <dt>${label}</dt>
            <dd>${value}${note && html`<small>${note}</small>`}</dd>
          </div>
        `,
      )}
    </dl>
  `;
}

/** How full something is, as a bar with its text. */
export function Meter({ label, value, capacity, text }) {
  const share = capacity > 0 ? Math.min(1, value / capacity) : 0;
  return html`
    <div class="meter">
      <div class="meter-text"><span>${label}</span><span class="numeric">${text}</span></div>
      <svg class="meter-bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
        <rect class="track" width="100" height="4" />
        <rect class="fill" width=${share * 100} height="4" />
      </svg>
    </div>
  `;
}

/** Names the nodes that did not answer, so that what is missing is not taken for nothing. */
export function Unreachable({ nodes }) {
  if (!nodes || nodes.length === 0) return null;
  const which = nodes.length === 1 ? `Node ${nodes[0]} does` : `Nodes ${nodes.join(", ")} do`;
  return html`<p class="warning-line" role="status">${which} not answer: what only they know is missing below.</p>`;
}

/** A labelled field. `error` is shown below it and read out with it. */
export function Field({ id, label, hint, children }) {
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      ${children}
      ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
    </div>
  `;
}
