// Fields of filters, whose values are in the address.
import { html, useEffect, useRef, useState } from "../html.js";

/** A choice among [[value, text], ...]. */
export function Choice({ label, choices, ...rest }) {
  return html`<label>${label}
    <select ...${rest}>${choices.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>
  </label>`;
}

/** A text. */
export function Text({ label, ...rest }) {
  return html`<label class="text">${label}<input autocomplete="off" spellcheck=${false} ...${rest} /></label>`;
}

/**
 * A form of filters. `values`: those that apply, all of them texts. `apply(values)` is called with the new ones when a choice
 * was made, or a text was entered and left. `fields(of)` returns the fields; `of(name)` has what connects one with its value.
 */
export function FilterForm({ label, values, apply, fields }) {
  const [now, setNow] = useState(values);
  const key = JSON.stringify(values);
  const former = useRef(values);
  useEffect(() => {
    // Only what has changed in the address: a text that is being typed stays.
    const changed = Object.entries(values).filter(([name, value]) => value !== former.current[name]);
    former.current = values;
    setNow((old) => ({ ...old, ...Object.fromEntries(changed) }));
  }, [key]);
  const change = (name) => (event) => {
    const changed = { ...now, [name]: event.target.value };
    setNow(changed);
    if (event.type === "change") apply(changed);
  };
  const of = (name) => ({ value: now[name], onInput: change(name), onChange: change(name) });
  const isSet = Object.values(values).some((value) => value !== "");
  return html`
    <form class="filter-form" role="search" aria-label=${label} onSubmit=${(event) => event.preventDefault()}>
      ${fields(of)}
      ${isSet && html`<button type="button" onClick=${() => apply({})}>Clear</button>`}
    </form>
  `;
}

/** Return the values of filters that a query has; those that are missing are empty. */
export const valuesOf = (query, names) => Object.fromEntries(names.map((name) => [name, query[name] ?? ""]));
