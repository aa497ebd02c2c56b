// Commands that the pages suggest where there is nothing to show yet.
import { getState } from "./store.js";

/** Return `host:port` of the node for Kafka clients. */
export function bootstrap() {
  const self = getState().cluster?.nodes.find((node) => node.self);
  return self ? `${self.host.includes(":") ? `[${self.host}]` : self.host}:${self.port}` : "127.0.0.1:9092";
}

/** Return a text as one word of a shell. */
const quoted = (text) => (/^[\w.:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A command that sends a first record. */
export const firstRecord = (topic) =>
  `echo 'k1:hello' | anabranch produce ${quoted(topic)} --key-separator : --bootstrap-server ${bootstrap()}`;

/** A command that installs what a node needs to make tables. */
export const INSTALL_TABLES = "pip install 'anabranch[tables]'";

/** A command that makes a topic, whose records are JSON, a table. */
export const makeTable = (topic) =>
  `anabranch topic alter ${quoted(topic)} --table json --bootstrap-server ${bootstrap()}`;

/** A command that registers a first schema, at the node that serves this page. */
export function firstSchema() {
  const token = getState().session?.authentication ? ' --oauth2-bearer "$TOKEN"' : "";
  return `curl ${location.origin}/schema-registry/subjects/greetings-value/versions${token} --json '{"schema": "\\"string\\""}'`;
}

/** A command that reads as a group. */
export const firstGroup = (topic) =>
  `anabranch consume ${quoted(topic)} --group readers --follow --bootstrap-server ${bootstrap()}`;
