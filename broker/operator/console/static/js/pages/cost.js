// What the cluster costs in a month, by item and by topic, and what Apache Kafka would cost with the same traffic.
import { api } from "../api.js";
import { Empty, Figures, Name, PageError, PageHead, Section, Waiting } from "../components/basics.js";
import { Table } from "../components/table.js";
import { bytesPerSecond, count, duration, number } from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { NAMES, PRICE_MAX, priceList, usePrices } from "../prices.js";
import { href } from "../router.js";

/** Rows of a table of topics. */
const SHOWN_MAX = 200;

const money = (value) => value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

const amountOf = (value) => (value === 0 ? "–" : number(Number(value.toPrecision(3))));

export function CostPage() {
  const [changed, change, reset] = usePrices();
  const poll = usePoll((signal) => api.cost(priceList(changed), signal), 0, []);
  const found = poll.data;
  const afterwards = (action) => (...values) => {
    action(...values);
    poll.refresh();
  };
  return html`
    <${PageHead} title="Cost" />
    ${found === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <${Sum} found=${found} />
          <${Section} id="lines" title="Of a month">
            <div class="priced">
              <${Lines} cost=${found.cost} />
              <${PriceForm} prices=${{ ...found.cost.prices, ...changed }} change=${afterwards(change)} reset=${afterwards(reset)} />
            </div>
            <ul class="note">${found.cost.assumptions.map((text) => html`<li key=${text}>${text}</li>`)}</ul>
          <//>
          <${Section} id="topics" title="By topic">
            <${Topics} topics=${found.cost.topics} />
          <//>
          <${Section} id="racks" title="Between racks" note="Record batches between clients and nodes, by the racks that both are in.">
            <${Racks} racks=${found.racks} />
          <//>
        `}
  `;
}

function PriceForm({ prices, change, reset }) {
  const entered = (name) => (event) =>
    event.target.value !== "" && event.target.checkValidity() && change(name, Number(event.target.value));
  return html`
    <form class="card prices" onSubmit=${(event) => event.preventDefault()} aria-label="Prices">
      <h3>Prices in ${prices.currency}</h3>
      <p class="note">${prices.name}. Changes stay in this browser.</p>
      ${Object.entries(NAMES).map(
        ([name, text]) => html`
          <div class="price" key=${name}>
            <label for=${`price-${name}`}>${text}</label>
            <input id=${`price-${name}`} type="number" min="0" max=${PRICE_MAX} step="any" inputmode="decimal" value=${prices[name]} onChange=${entered(name)} />
          </div>
        `,
      )}
      <button type="button" class="small" onClick=${reset}>Back to list prices</button>
    </form>
  `;
}

function Sum({ found }) {
  const { use, cost, unreachable } = found;
  return html`
    ${unreachable.length > 0 &&
    html`<p class="warning-line" role="status">Not counted, as they do not tell their use: nodes ${unreachable.join(", ")}.</p>`}
    <${Figures}
      items=${[
        ["A month", `${money(cost.cost)} ${cost.prices.currency}`, "of this cluster"],
        ["Apache Kafka", `${money(cost.kafka_cost)} ${cost.prices.currency}`, "with the same traffic"],
        ["Zones", number(use.zones.length), use.zones.join(", ") || "no node has a rack"],
        ["Measured for", duration(use.measured_s * 1000), "since the start of the nodes"],
      ]}
    />
  `;
}

function Lines({ cost }) {
  const columns = [
    { title: "What", cell: (row) => row.item },
    { title: "Amount", cell: (row) => amountOf(row.amount), numeric: true, wide: true },
    { title: "Unit", cell: (row) => row.unit, wide: true },
    { title: "Cost", cell: (row) => money(row.cost), numeric: true },
    { title: "Amount of Apache Kafka", cell: (row) => amountOf(row.kafka_amount), numeric: true, wide: true },
    { title: "Its cost", cell: (row) => money(row.kafka_cost), numeric: true },
  ];
  return html`<${Table} caption="Of a month" columns=${columns} rows=${cost.lines} rowKey=${(row) => row.item} />`;
}

const topicCell = ({ topic }) =>
  topic === "(deleted)" ? "deleted topics" : html`<a href=${href(["topics", topic])}><${Name} text=${topic} /></a>`;

function Topics({ topics }) {
  if (topics.length === 0) return html`<${Empty} title="There are no topics." />`;
  const columns = [
    { title: "Topic", cell: topicCell, value: (row) => row.topic },
    { title: "GB across zones", cell: (row) => amountOf(row.across_gb), value: (row) => row.across_gb, numeric: true },
    { title: "GB kept", cell: (row) => amountOf(row.kept_gb), value: (row) => row.kept_gb, numeric: true, wide: true },
    { title: "Cost", cell: (row) => money(row.cost), value: (row) => row.cost, numeric: true },
    { title: "Apache Kafka", cell: (row) => money(row.kafka_cost), value: (row) => row.kafka_cost, numeric: true },
  ];
  return html`
    <${Table} caption="By topic" columns=${columns} rows=${topics.slice(0, SHOWN_MAX)} rowKey=${(row) => row.topic} sort=${3} descending />
    ${topics.length > SHOWN_MAX && html`<p class="note">${count(topics.length - SHOWN_MAX, "more topic")}, which cost less.</p>`}
  `;
}

function Racks({ racks }) {
  const columns = [
    { title: "Clients", cell: (row) => row.clients || "not known", value: (row) => row.clients },
    { title: "Nodes", cell: (row) => row.nodes || "not known", value: (row) => row.nodes },
    { title: "Produced", cell: (row) => bytesPerSecond(row.received), value: (row) => row.received, numeric: true },
    { title: "Consumed", cell: (row) => bytesPerSecond(row.sent), value: (row) => row.sent, numeric: true },
  ];
  const rows = racks.filter((row) => row.received + row.sent > 0);
  if (rows.length === 0) return html`<${Empty} title="There is no traffic." />`;
  return html`<${Table} caption="Between racks" columns=${columns} rows=${rows} rowKey=${(row) => `${row.clients} ${row.nodes}`} sort=${0} />`;
}
