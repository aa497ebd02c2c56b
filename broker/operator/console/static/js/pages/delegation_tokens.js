// Delegation tokens: who may act for whom, and how long.
import { api } from "../api.js";
import { Empty, Name, PageError, PageHead, State, Time, Waiting } from "../components/basics.js";
import { ChangeDialog } from "../components/dialog.js";
import { Table } from "../components/table.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { notify, useMayOperate } from "../store.js";
import { SecurityTabs } from "./security.js";

export function TokensPage() {
  const poll = usePoll((signal) => api.delegationTokens(signal), 10_000, []);
  const [revoked, setRevoked] = useState(null);
  const mayOperate = useMayOperate();
  const close = () => setRevoked(null);
  const done = ({ id }) => {
    close();
    notify(`Token ${id} is revoked.`);
    poll.refresh();
  };
  return html`
    <${PageHead} title="Delegation tokens" />
    <${SecurityTabs} current="Delegation tokens" />
    ${poll.data === null
      ? html`<${Waiting} poll=${poll} />`
      : html`
          <${PageError} error=${poll.error} retry=${poll.refresh} />
          <${Tokens} found=${poll.data} revoke=${mayOperate && setRevoked} />
        `}
    ${revoked && html`<${RevokeToken} token=${revoked} close=${close} done=${done} />`}
  `;
}

function Tokens({ found, revoke }) {
  if (!found.enabled) {
    return html`
      <${Empty} title="Delegation tokens are off.">
        <p>They need a secret key, the same on all nodes: <code>delegation_token.secret_key_file</code>.</p>
      <//>
    `;
  }
  if (found.tokens.length === 0) {
    return html`<${Empty} title="There are no delegation tokens."><p>A client that has authenticated itself can ask for one.</p><//>`;
  }
  return html`
    ${found.more && html`<p class="warning-line">There are more tokens than these ${found.tokens.length}.</p>`}
    <${Table} caption="Delegation tokens" columns=${columnsOf(revoke)} rows=${found.tokens} rowKey=${(row) => row.id} sort=${1} />
    <p class="note">Nobody can be shown what a client authenticates itself with: its owner has it since it was created.</p>
  `;
}

/** Columns of the table. `revoke(token)` opens a dialog; false: there are no changes. */
function columnsOf(revoke) {
  const hasExpired = (row) => Math.min(row.expires_ms, row.max_ms) < Date.now();
  return [
    { title: "Token", cell: (row) => html`<code><${Name} text=${row.id} /></code>`, value: (row) => row.id },
    {
      title: "Owner",
      cell: (row) => html`<${Name} text=${row.owner} />${row.requester !== row.owner && html` <small>asked for by ${row.requester}</small>`}`,
      value: (row) => row.owner,
    },
    { title: "Renewers", cell: (row) => row.renewers.join(", ") || "the owner only", wide: true },
    { title: "Issued", cell: (row) => html`<${Time} at_ms=${row.issued_ms} />`, value: (row) => row.issued_ms, wide: true },
    {
      title: "Expires",
      cell: (row) => (hasExpired(row) ? html`<${State} kind="off">has expired<//>` : html`<${Time} at_ms=${row.expires_ms} />`),
      value: (row) => row.expires_ms,
      wide: true,
    },
    { title: "Renewable until", cell: (row) => html`<${Time} at_ms=${row.max_ms} />`, value: (row) => row.max_ms, wide: true },
    ...(revoke
      ? [
          {
            title: "Change",
            cell: (row) =>
              html`<button type="button" class="small danger-quiet" aria-label=${`Revoke ${row.id}`} onClick=${() => revoke(row)}>Revoke</button>`,
          },
        ]
      : []),
  ];
}

function RevokeToken({ token, close, done }) {
  return html`
    <${ChangeDialog} title="Revoke a delegation token" verb="Revoke the token" danger confirm=${token.id} close=${close} done=${done}
      plan=${() => api.revokeToken(token.id, true)} act=${() => api.revokeToken(token.id, false)}
      show=${(plan) => html`<p>Clients can no longer log in as ${plan.owner} with it. Connections that are open stay open until it would have expired.</p>`} />
  `;
}
