// Drawing of a partition's offsets over the places that hold them, to scale, with the details of one piece (a run in the API).
import { Name, Time } from "../components/basics.js";
import { html, useId, useLayoutEffect, useRef, useState } from "../html.js";
import { bytes, number } from "../format.js";

const LABEL = 19;
const ROW = 26;
const STEP = LABEL + ROW + 8;
const AXIS = 22;
/** Width below which a piece cannot be seen. Narrower ones are drawn with it, and the note says so. */
const RUN_WIDTH_MIN = 2;
const TICKS = 5;

const runKey = (run) => `${run.kind} ${run.base_offset} ${run.object_id}`;

/** Return round offsets between two, as labels of an axis. */
function ticks(from, to) {
  const rough = (to - from) / TICKS;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? power;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

/** Hook: width of an element, in pixels. */
function useWidth(element) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(element.current.clientWidth));
    observer.observe(element.current);
    setWidth(element.current.clientWidth);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** `places`: [[kind, name, description], ...], from top to bottom. */
export function OffsetMap({ storage, runs, places }) {
  const holder = useRef(null);
  const width = useWidth(holder);
  const [recentOnly, setRecentOnly] = useState(false);
  const [chosen, setChosen] = useState(null);
  const helpId = useId();
  const isTouch = matchMedia("(hover: none)").matches;
  const recentFrom = recentStart(storage, runs);
  const [from, to] = [recentOnly ? recentFrom : storage.start_offset, storage.end_offset];
  const x = (offset) => ((Math.min(Math.max(offset, from), to) - from) / Math.max(1, to - from)) * (width - 2);
  const top = (row) => row * STEP + LABEL;
  const height = places.length * STEP + AXIS;
  const shown = runs
    .filter((run) => run.end_offset > from && run.base_offset < to)
    .toSorted((a, b) => rowOf(places, a) - rowOf(places, b) || a.base_offset - b.base_offset);
  const selected = shown.find((run) => runKey(run) === chosen) ?? null;
  const tabStop = selected ? chosen : shown.length ? runKey(shown[0]) : null;
  const isWidened = shown.some((run) => x(run.end_offset) - x(run.base_offset) < RUN_WIDTH_MIN);

  const move = (event, index) => {
    const next = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const target = shown[Math.min(Math.max(next, 0), shown.length - 1)];
    setChosen(runKey(target));
    holder.current.querySelector(`[data-run="${CSS.escape(runKey(target))}"]`)?.focus();
  };

  return html`
    <div class="map">
      <div class="map-bar">
        <div class="modes" role="group" aria-label="Part shown">
          <button type="button" aria-pressed=${!recentOnly} onClick=${() => setRecentOnly(false)}>Whole partition</button>
          <button type="button" aria-pressed=${recentOnly} onClick=${() => setRecentOnly(true)}>Newest part</button>
        </div>
      </div>
      <div ref=${holder} class="map-canvas">
        <svg width=${width} height=${height} role="group" aria-label="Offsets by place" aria-describedby=${helpId}>
          ${places.map(
            ([kind], row) => html`<rect key=${`row ${kind}`} class="map-row" x="0" y=${top(row)} width=${width} height=${ROW} />`,
          )}
          ${ticks(from, to).map(
            (offset) => html`
              <g key=${`tick ${offset}`}>
                <line class="map-tick" x1=${x(offset)} x2=${x(offset)} y1=${LABEL} y2=${height - AXIS} />
                <text class="map-label" x=${x(offset)} y=${height - 6}
                  text-anchor=${x(offset) < 40 ? "start" : x(offset) > width - 40 ? "end" : "middle"}>${number(offset)}</text>
              </g>
            `,
          )}
          ${shown.map((run, index) => {
            const key = runKey(run);
            const begin = x(run.base_offset);
            return html`
              <rect key=${key} data-run=${key} class="run ${run.kind} ${key === chosen ? "chosen" : ""}" rx="2"
                x=${begin} y=${top(rowOf(places, run))} height=${ROW}
                width=${Math.max(RUN_WIDTH_MIN, x(run.end_offset) - begin - 1)}
                role="button" tabindex=${key === tabStop ? 0 : -1} aria-label=${describe(run, places)}
                onMouseEnter=${() => setChosen(key)} onFocus=${() => setChosen(key)} onClick=${() => setChosen(key)}
                onKeyDown=${(event) => move(event, index)} />
            `;
          })}
          ${storage.committed_offset > from &&
          storage.committed_offset < to &&
          html`<line class="map-committed" x1=${x(storage.committed_offset)} x2=${x(storage.committed_offset)} y1=${LABEL - 4} y2=${height - AXIS} />`}
          ${places.map(([kind, name], row) => html`<text key=${`name ${kind}`} class="map-place" x="0" y=${top(row) - 5}>${name}</text>`)}
        </svg>
      </div>
      <p class="visually-hidden" id=${helpId}>The arrow keys go from piece to piece. The same is in the table below.</p>
      <div class="map-details" aria-live="polite">
        ${selected ? html`<${RunDetails} run=${selected} places=${places} />` : html`<p class="note">${isTouch ? "Tap a piece for its details." : "Point at a piece for its details, or go there with the keyboard."}</p>`}
      </div>
      <p class="note">
        <span class="committed-mark" aria-hidden="true"></span> Up to offset ${number(storage.committed_offset)}, records are in objects.
        ${isWidened ? " Some pieces are too short to be seen at this scale and are drawn wider than they are." : ""}
      </p>
    </div>
  `;
}

const rowOf = (places, run) => places.findIndex((place) => place[0] === run.kind);

/** Where the newest part begins: at what is in memory or in the log, and as much again before it. */
function recentStart(storage, runs) {
  const near = runs.filter((run) => run.kind === "wal" || run.kind === "log_cache").map((run) => run.base_offset);
  const first = Math.min(storage.committed_offset, storage.end_offset - 1, ...near);
  return Math.max(storage.start_offset, first - (storage.end_offset - first));
}

function describe(run, places) {
  const place = places[rowOf(places, run)]?.[1] ?? run.kind;
  return `${place}: offsets ${number(run.base_offset)} to ${number(run.end_offset)}, ${bytes(run.bytes)}`;
}

function RunDetails({ run, places }) {
  const [, name, text] = places[rowOf(places, run)] ?? [run.kind, run.kind, ""];
  return html`
    <dl class="pairs">
      <div><dt>${name}</dt><dd>${text}</dd></div>
      <div><dt>Offsets</dt><dd>${number(run.base_offset)} to ${number(run.end_offset)} (${number(run.end_offset - run.base_offset)})</dd></div>
      <div><dt>Size</dt><dd>${bytes(run.bytes)}</dd></div>
      ${run.key && html`<div><dt>Object</dt><dd><code><${Name} text=${run.key} /></code></dd></div>`}
      ${run.committed_ms !== null && html`<div><dt>Committed</dt><dd><${Time} at_ms=${run.committed_ms} /></dd></div>`}
    </dl>
  `;
}
