// Dialogs, and the two steps of every change: the plan from `validate_only`, and the change itself.
import { html, useEffect, useId, useRef, useState } from "../html.js";
import { ErrorLine } from "./basics.js";

/**
 * A modal dialog. The browser keeps the focus in it, and gives it back; Esc and the button call `close`. Ctrl+Enter (or
 * Command+Enter) presses the button that submits, from any field. A button that works on a request has `aria-disabled`:
 * with `disabled` it would lose the focus.
 */
export function Dialog({ title, close, wide, children }) {
  const element = useRef(null);
  const titleId = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const cancel = (event) => {
    event.preventDefault(); // this component decides when it goes, not the browser
    close();
  };
  const onKey = (event) => {
    if (event.key !== "Enter") return;
    const submits = event.ctrlKey || event.metaKey;
    // A key that is held down must not show the plan and then carry it out.
    if (submits || (event.repeat && !event.target.matches("textarea"))) event.preventDefault();
    if (submits && !event.repeat) element.current.querySelector("[type=submit]:not(:disabled)")?.click();
  };
  return html`
    <dialog ref=${element} class=${wide ? "wide-dialog" : ""} aria-labelledby=${titleId} onCancel=${cancel} onKeyDown=${onKey}>
      <header class="dialog-head">
        <h2 id=${titleId}>${title}</h2>
        <button type="button" class="plain" onClick=${close} aria-label="Close">✕</button>
      </header>
      ${children}
    </dialog>
  `;
}

/**
 * A change in two steps. The form is `children`; "Show the plan" calls `plan()`, whose answer `show(plan)` turns into
 * markup; only then can `act()` be called. After it `done(answer)` is called. A change of `inputs` forgets the plan. With
 * the plan the focus goes to what is next: the button that carries it out, or the field that confirms it.
 *
 * `confirm`: a text that has to be typed before a change that cannot be undone. `allows(plan)`: whether it can be carried out.
 */
export function ChangeDialog({ title, close, wide, inputs, plan, show, act, done, verb, danger, confirm, allows = () => true, children }) {
  const [state, setState] = useState({ plan: null, error: null, busy: false });
  const [typed, setTyped] = useState("");
  const confirmId = useId();
  const key = JSON.stringify(inputs ?? null);
  const newestKey = useRef(key);
  newestKey.current = key;
  const isMounted = useRef(true);
  const isBusy = useRef(false);
  const next = useRef(null);
  const shown = useRef(null);
  useEffect(() => () => (isMounted.current = false), []);
  useEffect(() => setState((old) => ({ ...old, plan: null, error: null })), [key]);
  useEffect(() => {
    if (state.plan === null) return;
    next.current?.focus();
    shown.current.scrollIntoView({ block: "nearest" }); // a long form may have it below the part that is seen
  }, [state.plan]);

  const run = async (step, use) => {
    if (isBusy.current) return;
    isBusy.current = true;
    setState((old) => ({ ...old, error: null, busy: true }));
    try {
      const answer = await step();
      if (!isMounted.current) return;
      setState((old) => ({ ...old, busy: false }));
      use(answer);
    } catch (error) {
      if (isMounted.current) setState((old) => ({ ...old, error, busy: false }));
    } finally {
      isBusy.current = false;
    }
  };
  const showPlan = () =>
    run(plan, (answer) => {
      if (newestKey.current === key) setState((old) => ({ ...old, plan: answer })); // else it is of former inputs
    });
  const carryOut = () => run(act, done);
  useEffect(() => {
    if (!children) showPlan(); // there is nothing to fill in
  }, []);

  const isAllowed = state.plan === null || allows(state.plan);
  const isConfirmed = isAllowed && (!confirm || typed === confirm);
  const submit = (event) => {
    event.preventDefault();
    if (state.plan === null) showPlan();
    else if (isConfirmed) carryOut();
  };
  return html`
    <${Dialog} title=${title} close=${close} wide=${wide}>
      <form onSubmit=${submit}>
        <div class="dialog-body">
          ${children}
          <div aria-live="polite">
            ${state.plan !== null && html`<div class="plan" ref=${shown}><h3>Plan</h3>${show(state.plan)}</div>`}
          </div>
          ${state.plan !== null &&
          isAllowed &&
          confirm &&
          html`<div class="field">
            <label for=${confirmId}>Type <b>${confirm}</b> to confirm. This cannot be undone.</label>
            <input id=${confirmId} ref=${next} autocomplete="off" spellcheck=${false} value=${typed} onInput=${(e) => setTyped(e.target.value)} />
          </div>`}
          <${ErrorLine} error=${state.error} />
        </div>
        <footer class="dialog-foot">
          <button type="button" onClick=${close}>Cancel</button>
          ${state.plan === null
            ? html`<button type="submit" class="primary" aria-disabled=${state.busy}>Show the plan</button>`
            : html`<button type="submit" ref=${confirm ? null : next} class=${danger ? "danger" : "primary"}
                disabled=${!isConfirmed} aria-disabled=${state.busy}>
                ${verb}
              </button>`}
        </footer>
      </form>
    <//>
  `;
}
