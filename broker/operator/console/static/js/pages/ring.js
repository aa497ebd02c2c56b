// The write-ahead log as a ring: the part in use, up to where the next record is written. A log of objects is a full circle.
import { bytes } from "../format.js";
import { html } from "../html.js";

const CENTRE = 100;
const RADIUS = 82;
const TURN = 2 * Math.PI;

const point = (share) => [CENTRE + RADIUS * Math.sin(share * TURN), CENTRE - RADIUS * Math.cos(share * TURN)];

/** Return the path of an arc between two parts of the circle, clockwise. */
function arc(from, to) {
  const [x1, y1] = point(from);
  const [x2, y2] = point(to);
  return `M ${x1} ${y1} A ${RADIUS} ${RADIUS} 0 ${to - from > 0.5 ? 1 : 0} 1 ${x2} ${y2}`;
}

export function Ring({ wal }) {
  const used = Math.min(0.999, wal.capacity_bytes > 0 ? wal.used_bytes / wal.capacity_bytes : 0);
  const end = wal.capacity_bytes > 0 ? wal.write_position / wal.capacity_bytes : 0;
  const [x, y] = point(end);
  const percent = Math.round(used * 100);
  return html`
    <svg class="ring" viewBox="0 0 200 200" role="img"
      aria-label=${`${percent} percent of the log is in use: ${bytes(wal.used_bytes)} of ${bytes(wal.capacity_bytes)}`}>
      <circle class="ring-track" cx=${CENTRE} cy=${CENTRE} r=${RADIUS} />
      ${used > 0 && html`<path class="ring-used" d=${arc(end - used, end)} />`}
      <circle class="ring-head" cx=${x} cy=${y} r="7" />
      <text class="ring-value" x=${CENTRE} y=${CENTRE - 2} text-anchor="middle">${bytes(wal.used_bytes)}</text>
      <text class="ring-label" x=${CENTRE} y=${CENTRE + 18} text-anchor="middle">of ${bytes(wal.capacity_bytes)} in use</text>
    </svg>
    <p class="note">The circle is the log; the mark is where the next record goes. What is in objects is freed at the other end.</p>
  `;
}
