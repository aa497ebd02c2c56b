// Entry of a token, when the node asks for one. It is kept for this tab only.
import { api, setToken } from "../api.js";
import { ErrorLine, Field, PageHead } from "../components/basics.js";
import { html, useState } from "../html.js";
import { update } from "../store.js";

export function SignIn() {
  const [token, enter] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setToken(token.trim());
    try {
      const session = await api.session();
      update({ session, needsToken: false });
    } catch (failure) {
      setToken("");
      setError(failure.status === 401 ? new Error("The node does not accept this token: it is mistyped, or no longer valid.") : failure);
    }
  };
  return html`
    <div class="sign-in">
      <${PageHead} title="Sign in" />
      <p>This admin port asks for a token. A read token shows everything; an operate token can change things, too.</p>
      <form onSubmit=${submit}>
        <${Field} id="token" label="Token" hint="It stays in this tab, and is forgotten when the tab is closed.">
          <input id="token" type="password" autocomplete="off" required aria-describedby="token-hint"
            value=${token} onInput=${(event) => enter(event.target.value)} />
        <//>
        <${ErrorLine} error=${error} />
        <button type="submit" class="primary">Sign in</button>
      </form>
    </div>
  `;
}
