// What leaves the page: to the clipboard, or to a file.
import { notify } from "./store.js";

/** Copy a text; return whether the browser allows that. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    notify("The browser does not allow copying here: select the text instead.", "bad"); // without TLS, for example
    return false;
  }
}

/** Save parts (texts or bytes) as a file. */
export function saveFile(name, parts, type) {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}

/** Return the bytes of a text in base64. */
export const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

/** Return the text of bytes in base64; null if they are none. */
export function textOf(base64) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytesOf(base64));
  } catch {
    return null;
  }
}
