// Curves over time, drawn by uPlot on a canvas. The text below says the newest values, for those who see no canvas.
import uPlot from "../../vendor/uplot.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { clock } from "../format.js";
import { Name } from "./basics.js";

/** Points in time that make a curve. */
const POINTS_MIN = 2;
/** Steps between the labels of an axis: of times in seconds, of sizes in bytes, of other numbers. */
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600];
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const NUMBER_STEPS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

/** Return a colour of the style sheet as the canvas needs it. */
function colour(element, name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** The style sheet says how high a chart is. */
const sizeOf = (element) => ({ width: Math.max(element.clientWidth, 120), height: element.clientHeight });

function options(element, series, format, isBytes) {
  const grid = { stroke: colour(element, "--border"), width: 1 };
  const axis = { stroke: colour(element, "--muted"), grid, ticks: grid, font: "11px system-ui" };
  return {
    ...sizeOf(element),
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, size: 24, values: (_plot, ticks) => ticks.map((tick) => clock(tick * 1000)), space: 70, incrs: TIME_STEPS },
      {
        ...axis,
        size: 72,
        values: (_plot, ticks) => ticks.map((tick) => format(tick)),
        space: 36,
        incrs: isBytes ? BYTE_STEPS : NUMBER_STEPS,
      },
    ],
    series: [
      {},
      ...series.map((each, index) => ({
        label: each.label,
        stroke: colour(element, `--series-${(index % 6) + 1}`),
        width: 1.5,
        points: { show: false },
      })),
    ],
  };
}

/**
 * A chart. `times_ms`: points in time. `series`: [{label, values}], a value for each point in time or null.
 * `format(value)` writes a value; `isBytes`: the values are sizes. It shows the value under the pointer, otherwise the newest.
 */
export function Chart({ label, times_ms, series, format, isBytes }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const names = series.map((each) => each.label).join("\n");

  useEffect(() => {
    const element = holder.current;
    const make = () => {
      plot.current?.destroy();
      const made = { ...options(element, series, format, isBytes), hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] } };
      plot.current = new uPlot(made, data(times_ms, series), element);
    };
    make();
    const observer = new ResizeObserver(() => plot.current.setSize(sizeOf(element)));
    observer.observe(element);
    document.addEventListener("console:theme", make);
    return () => {
      observer.disconnect();
      document.removeEventListener("console:theme", make);
      plot.current.destroy();
      plot.current = null;
    };
  }, [names]);
  useEffect(() => plot.current?.setData(data(times_ms, series)), [times_ms, series]);

  const index = at !== null && at < times_ms.length ? at : times_ms.length - 1;
  return html`
    <figure class="chart">
      <figcaption>
        <span class="chart-title">${label}</span>
        ${index >= 0 && html`<span class="chart-time">${clock(times_ms[index])}</span>`}
        ${series.map(
          (each, position) => html`
            <span class="legend">
              <span class="swatch s${(position % 6) + 1}" aria-hidden="true"></span>
              <${Name} text=${each.label} /> <b class="numeric">${index < 0 || each.values[index] === null ? "–" : format(each.values[index])}</b>
            </span>
          `,
        )}
      </figcaption>
      <div ref=${holder} class="chart-canvas" aria-hidden="true"></div>
      ${times_ms.length < POINTS_MIN && html`<p class="chart-waiting note">Waiting for data …</p>`}
    </figure>
  `;
}

const data = (times_ms, series) => [times_ms.map((at) => at / 1000), ...series.map((each) => each.values)];
