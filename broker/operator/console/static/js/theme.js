// Light or dark: the system's choice, unless the user has chosen.

const KEY = "anabranch.theme";
const CHOICES = ["system", "light", "dark"];

export const currentTheme = () => localStorage.getItem(KEY) ?? "system";

/** Apply the stored choice. */
export function applyTheme() {
  const choice = currentTheme();
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  document.dispatchEvent(new CustomEvent("console:theme"));
}

/** Choose the next of system, light, dark. Returns it. */
export function nextTheme() {
  const choice = CHOICES[(CHOICES.indexOf(currentTheme()) + 1) % CHOICES.length];
  if (choice === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, choice);
  applyTheme();
  return choice;
}

// Charts are drawn on a canvas, which does not follow the style sheet by itself.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
