// A table with sorting. On narrow screens it scrolls sideways, and columns marked `wide` are left out.
import { html, useState } from "../html.js";

/** Compare two values for sorting; what is not known comes last. */
function compare(left, right) {
  if (left === right) return 0;
  if (left === null || left === undefined) return 1;
  if (right === null || right === undefined) return -1;
  return typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left < right ? -1 : 1;
}

/**
 * A table. `columns`: [{title, cell(row), value(row)?, numeric?, wide?}]; a column with `value` can be sorted by.
 * `rowKey(row)` identifies a row. `sort`: index of the first sorted column, negative for none.
 */
export function Table({ caption, columns, rows, rowKey, sort = -1, descending = false }) {
  const [order, setOrder] = useState({ column: sort, descending });
  const by = columns[order.column]?.value;
  const sorted = by ? rows.toSorted((a, b) => compare(by(a), by(b)) * (order.descending ? -1 : 1)) : rows;
  const sortBy = (index) =>
    setOrder({
      column: index,
      descending: order.column === index ? !order.descending : columns[index].numeric === true,
    });
  const classOf = (column) => [column.numeric && "numeric", column.wide && "wide"].filter(Boolean).join(" ");

  return html`
    <div class="table-scroll" role="group" aria-label=${caption} tabindex="0">
      <table>
        <caption class="visually-hidden">${caption}</caption>
        <thead>
          <tr>
            ${columns.map(
              (column, index) => html`
                <th
                  scope="col"
                  class=${classOf(column)}
                  aria-sort=${order.column === index && by ? (order.descending ? "descending" : "ascending") : undefined}
                >
                  ${column.value
                    ? html`<button type="button" class="sort" onClick=${() => sortBy(index)}>
                        ${column.title}<span class="arrow" aria-hidden="true"></span>
                      </button>`
                    : column.title}
                </th>
              `,
            )}
          </tr>
        </thead>
        <tbody>
          ${sorted.map(
            (row) => html`
              <tr key=${rowKey(row)}>
                ${columns.map((column, index) =>
                  index === 0
                    ? html`<th scope="row" class=${classOf(column)}>${column.cell(row)}</th>`
                    : html`<td class=${classOf(column)}>${column.cell(row)}</td>`,
                )}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}
