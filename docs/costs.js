// The calculator of costs.md: its formulas and prices, with fields for the numbers.
"use strict";

const FIELDS = [
  ["rate", "MB/s written, compressed", 10],
  ["days", "days kept", 7],
  ["groups", "groups that read all", 3],
  ["zones", "zones", 3],
  ["nodes", "nodes", 3],
  ["interval", "wal.put_interval_ms", 50],
];
const HOURS = 730;
const PRICE = { s3: 0.023, put: 0.005 / 1000, get: 0.0004 / 1000, disk: 0.08, transfer: 0.02 };

/** Return dollars a month: replicated to disks, a log on disks in one zone, a log in objects over all zones. */
function sums({ rate, days, groups, zones, nodes, interval }) {
  const written = (rate * 3600 * HOURS) / 1000;
  const kept = (rate * 86400 * days) / 1000;
  const elsewhere = written * ((zones - 1) / zones) * PRICE.transfer;
  const objects = kept * PRICE.s3 + (written / 0.00839) * 3 * (PRICE.put + PRICE.get);
  const puts = ((nodes * HOURS * 3600 * 1000) / interval) * PRICE.put;
  const copies = Math.min(zones, 3);
  return {
    "replicated three times, fetch from followers":
      (kept * 3 * PRICE.disk) / 0.7 + written * (copies - 1) * PRICE.transfer + elsewhere,
    "Anabranch, log on disks, one zone": objects + nodes * 10 * PRICE.disk,
    "Anabranch, log in objects, all zones": objects + puts + elsewhere * (1 + groups),
  };
}

function show(place) {
  const form = document.createElement("form");
  const table = document.createElement("table");
  const update = () => {
    const values = Object.fromEntries(FIELDS.map(([name]) => [name, Number(form.elements[name].value)]));
    const rows = Object.entries(sums(values)).map(([name, dollars]) => {
      const row = document.createElement("tr");
      const known = Number.isFinite(dollars);
      row.append(...[name, known ? Math.round(dollars).toLocaleString("en") : "-"].map((text) => {
        const cell = document.createElement("td");
        cell.textContent = text;
        return cell;
      }));
      return row;
    });
    table.replaceChildren(...rows);
  };
  for (const [name, text, value] of FIELDS) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    Object.assign(input, { name, type: "number", min: 0, step: "any", value });
    label.append(input, ` ${text}`);
    form.append(label);
  }
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
  place.append(form, table);
}

for (const place of document.querySelectorAll("#costs-of-yours")) show(place);
