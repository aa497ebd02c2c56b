// Calls to the object store, and what they and the stored bytes would cost in a month at prices that can be changed.
import { api } from "../api.js";
import { Section } from "../components/basics.js";
import { bytes, count, duration, money, number } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { MONTH_S, NAMES, priceOf, usePrices } from "../prices.js";

/** Kinds of calls that a store counts, as it names them, and what they are. The other counters are no calls. */
const CALLS = {
  put: "PUT",
  part: "Upload of a part",
  part_copy: "Copy of a part",
  multipart: "Start and end of a multipart upload",
  get: "GET",
  head: "HEAD",
  list: "LIST",
  delete: "DELETE",
};
const GB = 1e9;
/** Time from which a month is estimated, at least, and uploads since the node's start. */
const BASIS_MS_MIN = 20_000;
const UPLOADS_MIN = 3;

/** Return the samples that are the first after the end of an upload. */
const endsOf = (samples) => samples.filter(({ uploads }, index) => index > 0 && uploads.count > samples[index - 1].uploads.count);

/**
 * Return what a month is estimated from: {calls, elapsed_ms, uploads, isWatched}; null if it is too early.
 *
 * Calls come in cycles, most of them with an upload, and the next one may be minutes away. So only whole cycles tell what a
 * month costs: from the end of one upload to that of another while the page watched, or else all since the node's start
 * (`started_ms`, null if it is not known) after a few uploads.
 */
export function basisOf(samples, started_ms) {
  const ends = endsOf(samples);
  const [first, last] = [ends[0], ends.at(-1)];
  if (first && last.at_ms - first.at_ms >= BASIS_MS_MIN) {
    const calls = Object.fromEntries(Object.entries(last.store_calls).map(([call, total]) => [call, total - first.store_calls[call]]));
    return { calls, elapsed_ms: last.at_ms - first.at_ms, uploads: last.uploads.count - first.uploads.count, isWatched: true };
  }
  const now = samples.at(-1);
  const elapsed_ms = now && started_ms !== null ? now.at_ms - started_ms : 0;
  if (elapsed_ms < BASIS_MS_MIN || now.uploads.count < UPLOADS_MIN) return null;
  return { calls: now.store_calls, elapsed_ms, uploads: now.uploads.count, isWatched: false };
}

/** Say why there is no estimate, and when there will be one. */
function tooEarly(samples, { count: made, age_ms }) {
  const missing = Math.max(1, Math.min(2 - endsOf(samples).length, UPLOADS_MIN - made));
  return `It is too early to estimate a month: most calls come with uploads, of which there ${made === 1 ? "was" : "were"} ${number(made)} since the node
    started. While records arrive, the estimate follows in ${duration(Math.max(BASIS_MS_MIN, (missing + 1) * age_ms))} at the latest.`;
}

const told = ({ uploads, elapsed_ms, isWatched }) =>
  `Estimated from ${count(uploads, "upload")} in ${duration(elapsed_ms)}, ${isWatched ? "as this page watched" : "since the node started"}, with compaction as
    far as it ran then, and the objects that are there now. Traffic is not counted.`;

/** Return [{call, total, perMinute, perMonth, cost}, ...]; the last three are null without a basis. */
function rowsOf(now, basis, prices) {
  return Object.keys(CALLS)
    .filter((call) => now[call] > 0)
    .map((call) => {
      const perMonth = basis && (basis.calls[call] / basis.elapsed_ms) * 1000 * MONTH_S;
      const [perMinute, cost] = basis ? [(60 * perMonth) / MONTH_S, (perMonth / 1000) * prices[priceOf(call)]] : [null, null];
      return { call, total: now[call], perMinute, perMonth, cost };
    });
}

export function Costs({ samples, storage }) {
  const [prices, change, reset] = usePrices();
  const figures = usePoll((signal) => api.figures(signal), 0, []);
  const started_ms = figures.data?.nodes.find(({ node }) => node === storage.node_id)?.started_ms ?? null;
  const basis = basisOf(samples, started_ms);
  const rows = rowsOf(samples.at(-1)?.store_calls ?? storage.store_calls, basis, prices);
  const stored = Object.values(storage.objects ?? {}).reduce((sum, each) => sum + each.bytes, 0);
  const kept = (stored / GB) * prices.gb_month;
  const total = kept + rows.reduce((sum, row) => sum + (row.cost ?? 0), 0);
  return html`
    <${Section} id="calls" title="Calls to the store" note="Calls of this node, and what a month of the same would cost.">
      <div class="calls">
        <div class="table-scroll" role="group" aria-label="Calls to the store" tabindex="0">
          <table>
            <caption class="visually-hidden">Calls to the store, and their price</caption>
            <thead>
              <tr>
                <th scope="col">Call</th>
                <th scope="col" class="numeric wide">Since the start</th>
                <th scope="col" class="numeric">A minute</th>
                <th scope="col" class="numeric wide">In a month</th>
                <th scope="col" class="numeric">Cost of a month</th>
              </tr>
            </thead>
            <tbody>
              ${rows.map(
                (row) => html`
                  <tr key=${row.call}>
                    <th scope="row">${CALLS[row.call]}</th>
                    <td class="numeric wide">${number(row.total)}</td>
                    <td class="numeric">${row.perMinute === null ? "–" : number(Number(row.perMinute.toFixed(1)))}</td>
                    <td class="numeric wide">${row.perMonth === null ? "–" : number(Math.round(row.perMonth))}</td>
                    <td class="numeric">${row.cost === null ? "–" : money(row.cost)}</td>
                  </tr>
                `,
              )}
              <tr key="stored">
                <th scope="row">Objects kept, of the whole cluster: ${bytes(stored)}</th>
                <td class="numeric wide">–</td>
                <td class="numeric">–</td>
                <td class="numeric wide">–</td>
                <td class="numeric">${money(kept)}</td>
              </tr>
              <tr key="total" class="total">
                <th scope="row">All</th>
                <td class="wide"></td>
                <td></td>
                <td class="wide"></td>
                <td class="numeric">${basis ? money(total) : "–"}</td>
              </tr>
            </tbody>
          </table>
        </div>
        <form class="card prices" onSubmit=${(event) => event.preventDefault()} aria-label="Prices">
          <h3>Prices in US dollars</h3>
          ${Object.entries(NAMES).map(
            ([name, text]) => html`
              <div class="price" key=${name}>
                <label for=${`price-${name}`}>${text}</label>
                <input id=${`price-${name}`} type="number" min="0" step="any" inputmode="decimal" value=${prices[name]}
                  onChange=${(event) => event.target.value !== "" && event.target.checkValidity() && change(name, Number(event.target.value))} />
              </div>
            `,
          )}
          <button type="button" class="small" onClick=${reset}>Back to S3 Standard's prices</button>
        </form>
      </div>
      <p class="note">
        ${basis ? told(basis) : tooEarly(samples, samples.at(-1)?.uploads ?? storage.uploads)} Prices stay in this browser.
      </p>
    <//>
  `;
}
