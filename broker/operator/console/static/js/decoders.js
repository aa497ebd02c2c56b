// The formats in which a topic's keys and values are shown, as they were chosen last; kept in this browser.
const KEY = "anabranch.decoders";
export const AUTO = { decode: "auto", decode_key: "auto" };

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return typeof stored === "object" && stored !== null ? stored : {};
  } catch {
    return {}; // what is stored is not ours
  }
}

/** Return {decode, decode_key} of a topic. */
export const decodersOf = (topic) => ({ ...AUTO, ...load()[topic] });

/** Remember the formats of a topic. */
export function rememberDecoders(topic, { decode, decode_key }) {
  const { [topic]: former, ...others } = load();
  const isUsual = decode === AUTO.decode && decode_key === AUTO.decode_key;
  if (isUsual && former === undefined) return;
  localStorage.setItem(KEY, JSON.stringify(isUsual ? others : { ...others, [topic]: { decode, decode_key } }));
}
