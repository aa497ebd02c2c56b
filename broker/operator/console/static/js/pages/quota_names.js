// Quotas by name: what they limit, and how their values are written.
import { bytes, exactBytes, number, parseBytes } from "../format.js";

const WORDS = { user: "user", "client-id": "client id", ip: "address" };

const rate = {
  hint: "Bytes a second, such as 10MiB.",
  text: (value) => `${bytes(value)}/s`,
  field: exactBytes,
  parse: parseBytes,
};

/** Return how a plain number is written. */
const plain = (hint, unit) => ({
  hint,
  text: (value) => `${number(value)}${unit}`,
  field: String,
  parse: (text) => {
    const value = Number(text);
    if (!Number.isFinite(value)) throw new Error(`“${text}” is no number`);
    return value;
  },
});

const CLIENT_QUOTAS = {
  producer_byte_rate: { label: "Produce", ...rate },
  consumer_byte_rate: { label: "Consume", ...rate },
  request_percentage: { label: "Time of the node", ...plain("Per cent of a node's time; a node has 100.", " %") },
  controller_mutation_rate: { label: "Partitions created and deleted", ...plain("A second.", "/s") },
};
const ADDRESS_QUOTAS = { connection_creation_rate: { label: "New connections", ...plain("A second.", "/s") } };

/** All quotas: {label, hint, text(value), field(value), parse(text)}; the last one throws Error. */
export const QUOTAS = { ...CLIENT_QUOTAS, ...ADDRESS_QUOTAS };

/** Return the names of the quotas that an entity can have. */
export const quotasOf = (entity) => Object.keys(entity.some(({ type }) => type === "ip") ? ADDRESS_QUOTAS : CLIENT_QUOTAS);

/** `user etl, client id loader`, `any user`. */
export const entityText = (entity) =>
  [...entity]
    .sort((a, b) => b.type.localeCompare(a.type)) // the user first
    .map(({ type, name }) => (name === null ? `any ${WORDS[type]}` : `${WORDS[type]} ${name}`))
    .join(", ");
