// Dialogs that create users, change their passwords and delete them. Each shows the node's plan first.
import { api } from "../api.js";
import { Field } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { count, number } from "../format.js";
import { html, useState } from "../html.js";
import { href } from "../router.js";
import { principalOf } from "./security.js";

const MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"];
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const GENERATED_LETTERS = 24;

/** Return a password of letters and digits, with more than 140 unpredictable bits. */
function generate() {
  const found = [];
  while (found.length < GENERATED_LETTERS) {
    const [byte] = crypto.getRandomValues(new Uint8Array(1));
    if (byte < 4 * LETTERS.length) found.push(LETTERS[byte % LETTERS.length]); // each letter is as likely as the others
  }
  return found.join("");
}

/** The field of a new password, which can be generated and shown. */
function Password({ password, setPassword, autofocus }) {
  const [isShown, setShown] = useState(false);
  const invent = () => {
    setPassword(generate());
    setShown(true);
  };
  return html`
    <${Field} id="user-password" label="Password" hint="It cannot be shown later: nodes keep only what it can be checked with.">
      <div class="field-row">
        <input id="user-password" type=${isShown ? "text" : "password"} required autocomplete="new-password" spellcheck=${false}
          autofocus=${autofocus} aria-describedby="user-password-hint" value=${password} onInput=${(event) => setPassword(event.target.value)} />
        <button type="button" onClick=${invent}>Generate</button>
      </div>
    <//>
    <label class="check">
      <input type="checkbox" checked=${isShown} onChange=${(event) => setShown(event.target.checked)} />
      Show the password
    </label>
    ${!isSecureContext &&
    html`<p class="warning-line">This page is not encrypted: whoever reads in the network between can read the password.</p>`}
  `;
}

/** Return the chosen mechanisms. Throws Error if there is none. */
function chosenOf(mechanisms) {
  if (mechanisms.length === 0) throw new Error("choose at least one mechanism");
  return mechanisms;
}

function Mechanisms({ chosen, setChosen, hint }) {
  const change = (mechanism) => (event) =>
    setChosen(MECHANISMS.filter((each) => (each === mechanism ? event.target.checked : chosen.includes(each))));
  return html`
    <fieldset>
      <legend>Mechanisms</legend>
      ${MECHANISMS.map(
        (each) => html`<label class="check"><input type="checkbox" checked=${chosen.includes(each)} onChange=${change(each)} />${each}</label>`,
      )}
      <p class="hint">${hint}</p>
    </fieldset>
  `;
}

function Plan({ plan }) {
  return html`
    <dl class="pairs">
      <div><dt>User</dt><dd>${plan.name}</dd></div>
      ${plan.credentials.map(
        ({ mechanism, iterations }) => html`<div><dt>${mechanism}</dt><dd>the new password, with ${number(iterations)} iterations</dd></div>`,
      )}
    </dl>
  `;
}

export function CreateUser({ close, done }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [mechanisms, setMechanisms] = useState(MECHANISMS);
  const body = () => ({ name, password, mechanisms: chosenOf(mechanisms) });
  return html`
    <${ChangeDialog} title="Create a user" verb="Create" close=${close} done=${done} inputs=${[name, password, mechanisms]}
      plan=${async () => api.createUser({ ...body(), validate_only: true })} act=${async () => api.createUser(body())}
      show=${(plan) => html`<${Plan} plan=${plan} />`}>
      <${Field} id="user-name" label="Name">
        <input id="user-name" required autocomplete="username" spellcheck=${false} autofocus value=${name} onInput=${(event) => setName(event.target.value)} />
      <//>
      <${Password} password=${password} setPassword=${setPassword} />
      <${Mechanisms} chosen=${mechanisms} setChosen=${setMechanisms} hint="The user can log in with each of them." />
    <//>
  `;
}

export function ChangePassword({ user, close, done }) {
  const [password, setPassword] = useState("");
  const [mechanisms, setMechanisms] = useState(user.credentials.map((each) => each.mechanism));
  const body = () => ({ password, mechanisms: chosenOf(mechanisms) });
  return html`
    <${ChangeDialog} title=${`New password for ${user.name}`} verb="Set the password" close=${close} done=${done} inputs=${[password, mechanisms]}
      plan=${async () => api.changePassword(user.name, { ...body(), validate_only: true })} act=${async () => api.changePassword(user.name, body())}
      show=${(plan) => html`<${Plan} plan=${plan} /><p>Connections that are open stay open.</p>`}>
      <input type="text" autocomplete="username" readonly hidden value=${user.name} />
      <${Password} password=${password} setPassword=${setPassword} autofocus />
      <${Mechanisms} chosen=${mechanisms} setChosen=${setMechanisms}
        hint="Each has a password of its own. To change it without an interruption, set it for one, move the clients, then set it for the other." />
    <//>
  `;
}

export function DeleteUser({ name, close, done }) {
  const show = (plan) => html`
    <p>${name} can no longer log in with ${plan.mechanisms.join(" and ")}. Connections that are open stay open.</p>
    ${plan.tokens > 0 && html`<p class="warning-line">${count(plan.tokens, "delegation token")} of the user will be gone, too.</p>`}
    ${plan.acls > 0 &&
    html`<p class="warning-line">
      <a href=${href(["security", "acls"], { principal: principalOf(name) })}>${count(plan.acls, "ACL")}</a> of ${principalOf(name)} stay, and
      would apply to a later user of this name.
    </p>`}
  `;
  return html`
    <${ChangeDialog} title=${`Delete ${name}`} verb="Delete the user" danger confirm=${name} close=${close} done=${done}
      plan=${() => api.deleteUser(name, true)} act=${() => api.deleteUser(name, false)} show=${show} />
  `;
}
