// Start of the console.
import { html, render } from "./html.js";
import { App } from "./app.js";
import { applyTheme } from "./theme.js";

applyTheme();
render(html`<${App} />`, document.getElementById("app"));
