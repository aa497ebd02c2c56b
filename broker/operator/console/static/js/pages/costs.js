// Calls to the object store, and what they and the stored bytes would cost in a month at prices that can be changed.
import { Section } from "../components/basics.js";
import { bytes, duration, money, number } from "../format.js";
import { html } from "../html.js";
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
/** Time that has to be observed before a month is estimated from it. */
const OBSERVED_S_MIN = 20;

/** Return [{call, total, perMinute, perMonth, cost}, ...]; the last three are null until enough has been observed. */
function rowsOf(samples, storage, prices) {
  const [first, last] = [samples[0], samples.at(-1)];
  const seconds = samples.length > 1 ? (last.at_ms - first.at_ms) / 1000 : 0;
  const now = last?.store_calls ?? storage.store_calls;
  return Object.keys(CALLS)
    .filter((call) => call in now)
    .map((call) => {
      const perMonth = seconds < OBSERVED_S_MIN ? null : ((now[call] - first.store_calls[call]) / seconds) * MONTH_S;
      const [perMinute, cost] = perMonth === null ? [null, null] : [(60 * perMonth) / MONTH_S, (perMonth / 1000) * prices[priceOf(call)]];
      return { call, total: now[call], perMinute, perMonth, cost };
    });
}

export function Costs({ samples, storage }) {
  const [prices, change, reset] = usePrices();
  const rows = rowsOf(samples, storage, prices).filter((row) => row.total > 0);
  const isKnown = rows.length > 0 && rows.every((row) => row.cost !== null);
  const stored = Object.values(storage.objects ?? {}).reduce((sum, each) => sum + each.bytes, 0);
  const kept = (stored / GB) * prices.gb_month;
  const total = kept + rows.reduce((sum, row) => sum + (row.cost ?? 0), 0);
  const observed = samples.length > 1 ? samples.at(-1).at_ms - samples[0].at_ms : 0;
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
                <td class="numeric">${isKnown ? money(total) : "–"}</td>
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
        ${isKnown
          ? `Estimated from the last ${duration(observed)}, with the objects that are there now. Traffic is not counted. Prices stay in this browser.`
          : "The cost of a month is estimated once this page has watched the node for 20 seconds. Prices stay in this browser."}
      </p>
    <//>
  `;
}
