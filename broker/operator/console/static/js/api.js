// The one module that talks to the node: the JSON API of the admin port and its schema registry (docs/openapi.json).
import { getState, update } from "./store.js";

const BASE = "/api/v1";
/** Prefix of the schema registry, which has the paths of Confluent's. */
const REGISTRY = "/schema-registry";
/** Names of subjects in one answer: another node's answer has at most 1 MiB. */
const SUBJECTS_PAGE = 2_000;
const TOKEN_KEY = "anabranch.token";
const TIMEOUT_MS = 30_000;
/** Time for the answer that a table's commit takes longer. */
const COMMIT_MARGIN_MS = 5_000;
/** Time within which a node answers a probe, which needs no work of it. */
const PROBE_MS = 3_000;

/** A request that failed. `status` is 0 if the node did not answer. The message is one line to show. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Use a token for all further requests of this tab; an empty one forgets it. */
export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

export const hasToken = () => sessionStorage.getItem(TOKEN_KEY) !== null;

/** Return a path of the API or the registry; each part of it is encoded, and empty values of the query are left out. */
function url(parts, query = {}, base = BASE) {
  const known = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(known).toString();
  return `${base}/${parts.map((part) => encodeURIComponent(part)).join("/")}${search ? `?${search}` : ""}`;
}

function headers(body) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return {
    ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
    ...(body === undefined ? {} : { "Content-Type": "application/json" }),
  };
}

/** Remember that the node answers, or that it does not. */
function noteReachable(isReachable) {
  const { unreachableSince, recoveries } = getState();
  if (isReachable && unreachableSince !== null) update({ unreachableSince: null, recoveries: recoveries + 1 });
  if (!isReachable && unreachableSince === null) update({ unreachableSince: Date.now() });
}

/** Return the reason that a response gives, in one line. */
async function reasonOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error, message } = JSON.parse(text);
    return error ?? message ?? text; // the registry says message
  } catch {
    return text.split("\n")[0].slice(0, 300) || `the node answered ${response.status} ${response.statusText}`;
  }
}

/** Send a request and return the response, whose body has not been read. Throws ApiError; AbortError if aborted. */
async function send(method, path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TimeoutError") {
      throw new ApiError(0, "the node did not answer in time: try again");
    }
    noteReachable(false);
    throw new ApiError(0, "the node does not answer: it is stopped, or the network between is broken");
  }
  noteReachable(true);
  if (response.ok) return response;
  if (response.status === 401) update({ needsToken: true });
  throw new ApiError(response.status, await reasonOf(response));
}

async function json(method, path, { body, signal } = {}) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const response = await send(method, path, body, signal ? AbortSignal.any([signal, limit]) : limit);
  return response.json();
}

const get = (parts, query, signal) => json("GET", url(parts, query), { signal });
const change = (method, parts, body, query) => json(method, url(parts, query), { body });
const registry = (parts, query, signal) => json("GET", url(parts, query, REGISTRY), { signal });
const changeRegistry = (method, parts, body = {}, query = {}) => json(method, url(parts, query, REGISTRY), { body });
const configOf = (subject) => (subject === null ? ["config"] : ["config", subject]);

/** Return the names of all subjects; with `deletedOnly` in the query: of those that have nothing but deleted versions. */
async function subjects(query, signal) {
  const found = [];
  for (;;) {
    const page = await registry(["subjects"], { ...query, offset: found.length, limit: SUBJECTS_PAGE }, signal);
    found.push(...page);
    if (page.length < SUBJECTS_PAGE) return found;
  }
}

/**
 * Ask whether the node answers at all. A node that is stopped or hangs takes the connection, and then says nothing: no
 * other request tells that in time, since some may take long.
 */
async function probe(signal) {
  const limit = AbortSignal.timeout(PROBE_MS);
  try {
    const response = await send("GET", "/health/live", undefined, AbortSignal.any([signal, limit]));
    await response.text();
  } catch (error) {
    if (limit.aborted && !signal.aborted) noteReachable(false);
    throw error;
  }
}

/** Yield the objects of an open stream of lines, until it ends. Throws ApiError; AbortError if aborted. */
async function* lines(path, signal) {
  const response = await send("GET", path, undefined, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) if (part) yield JSON.parse(part);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the stream broke off");
  }
}

export const api = {
  probe,
  /** Ask whether this browser needs a token, without one: to be refused would be a failed authentication in the audit log. */
  needsToken: async (signal) => (await json("GET", "authentication", { signal })).needs_token,
  session: (signal) => get(["session"], {}, signal),
  cluster: (signal) => get(["cluster"], {}, signal),
  figures: (signal) => get(["cluster", "figures"], {}, signal),
  clusterStatus: (signal) => get(["cluster", "status"], {}, signal),
  election: (signal) => get(["cluster", "election"], {}, signal),
  balance: (signal) => get(["cluster", "balance"], {}, signal),
  cost: (prices, signal) => get(["cluster", "cost"], { prices }, signal),
  setBalancing: (isOn) => change("POST", ["cluster", "balance", isOn ? "resume" : "pause"], {}),
  elect: () => change("POST", ["cluster", "election"], {}),
  drain: (node, isWanted, validateOnly) =>
    change(isWanted ? "POST" : "DELETE", ["nodes", node, "drain"], {}, validateOnly ? { validate_only: "true" } : {}),
  move: (topic, partitions, to, validateOnly) =>
    change("POST", ["topics", topic, "moves"], {}, { partitions, to, validate_only: validateOnly ? "true" : "" }),

  topics: (signal) => get(["topics"], {}, signal),
  topic: (name, signal) => get(["topics", name], {}, signal),
  createTopic: (body) => change("POST", ["topics"], body),
  alterTopic: (name, body) => change("PATCH", ["topics", name], body),
  deleteTopic: (name, validateOnly) =>
    change("DELETE", ["topics", name], {}, validateOnly ? { validate_only: "true" } : {}),

  records: (topic, query, signal) => get(["topics", topic, "records"], query, signal),
  wholeRecord: (topic, partition, offset) => get(["topics", topic, "partitions", partition, "records", offset]),
  tail: (topic, query, signal) => lines(url(["topics", topic, "tail"], query), signal),
  produce: (topic, body) => change("POST", ["topics", topic, "records"], body),

  partitionStorage: (topic, partition, signal) =>
    get(["topics", topic, "partitions", partition, "storage"], {}, signal),
  producers: (topic, partition, signal) => get(["topics", topic, "partitions", partition, "producers"], {}, signal),

  groups: (signal) => get(["groups"], {}, signal),
  group: (id, signal) => get(["groups", id], {}, signal),
  resetGroup: (id, body) => change("POST", ["groups", id, "reset"], body),
  deleteGroup: (id, validateOnly) => change("DELETE", ["groups", id], {}, validateOnly ? { validate_only: "true" } : {}),

  users: (signal) => get(["users"], {}, signal),
  createUser: (body) => change("POST", ["users"], body),
  changePassword: (name, body) => change("PATCH", ["users", name], body),
  deleteUser: (name, validateOnly) => change("DELETE", ["users", name], {}, validateOnly ? { validate_only: "true" } : {}),
  acls: (query, signal) => get(["acls"], query, signal),
  createAcls: (body) => change("POST", ["acls"], body),
  deleteAcls: (body) => change("POST", ["acls", "delete"], body),
  delegationTokens: (signal) => get(["delegation-tokens"], {}, signal),
  revokeToken: (id, validateOnly) =>
    change("DELETE", ["delegation-tokens", id], {}, validateOnly ? { validate_only: "true" } : {}),
  quotas: (signal) => get(["quotas"], {}, signal),
  alterQuotas: (body) => change("PATCH", ["quotas"], body),
  audit: (query, signal) => get(["audit"], query, signal),

  transactions: (signal) => get(["transactions"], {}, signal),
  abortTransaction: (id, validateOnly) =>
    change("POST", ["transactions", id, "abort"], {}, validateOnly ? { validate_only: "true" } : {}),
  connect: (signal) => get(["connect"], {}, signal),
  /** `action`: ["pause"], ["resume"], ["restart"] or ["tasks", id, "restart"]. */
  changeConnector: (cluster, connector, action) => change("POST", ["connect", cluster, "connectors", connector, ...action], {}),

  subjects,
  versions: (subject, query, signal) => registry(["subjects", subject, "versions"], query, signal),
  /** `version`: a number or "latest"; deleted ones are found, too, if `deleted`. */
  schemaVersion: (subject, version, deleted, signal) =>
    registry(["subjects", subject, "versions", version], { deleted: deleted ? "true" : "" }, signal),
  /** Ids of the schemas that refer to a version; those of deleted versions, too, if `deleted`. */
  referringIds: (subject, version, deleted, signal) =>
    registry(["subjects", subject, "versions", version, "referencedby"], { deleted: deleted ? "true" : "" }, signal),
  versionsOfId: (id, signal) => registry(["schemas", "ids", id, "versions"], {}, signal),
  /** The level that applies to a subject, or without one that of the registry. */
  level: async (subject, signal) =>
    (await registry(configOf(subject), { defaultToGlobal: "true" }, signal)).compatibilityLevel,
  setLevel: (subject, level) => changeRegistry("PUT", configOf(subject), { compatibility: level }),
  /** Let a subject follow the registry's level, or without one the registry that of the settings. */
  withdrawLevel: (subject) =>
    changeRegistry("DELETE", configOf(subject)).catch((error) => {
      if (error.status !== 404) throw error; // else there was none
    }),
  /** Compare a schema with the versions that the level names: {is_compatible, messages}. */
  checkSchema: (subject, body) => changeRegistry("POST", ["compatibility", "subjects", subject, "versions"], body, { verbose: "true" }),
  registerSchema: (subject, body) => changeRegistry("POST", ["subjects", subject, "versions"], body),
  deleteVersion: (subject, version, permanent) =>
    changeRegistry("DELETE", ["subjects", subject, "versions", version], {}, { permanent: permanent ? "true" : "" }),
  deleteSubject: (subject, permanent) => changeRegistry("DELETE", ["subjects", subject], {}, { permanent: permanent ? "true" : "" }),

  tables: (signal) => get(["tables"], {}, signal),
  table: (name, signal) => get(["tables", name], {}, signal),
  snapshots: (name, query, signal) => get(["tables", name, "snapshots"], query, signal),
  /** `query`: the partition and the offset that the page begins with, and its limit. */
  tableFiles: (name, query, signal) => get(["tables", name, "files"], query, signal),
  /** Make rows of all that is committed in the topic now, and wait for that. */
  commitTable: (name) => change("POST", ["tables", name, "commit"], {}, { timeout_ms: TIMEOUT_MS - COMMIT_MARGIN_MS }),
  dropTable: ({ name, table_id }, keepFiles, validateOnly) =>
    change("DELETE", ["tables", name], {}, { table_id: table_id ?? "", keep_files: keepFiles ? "true" : "", validate_only: validateOnly ? "true" : "" }),

  storage: (signal) => get(["storage"], {}, signal),
  live: (signal) => lines(url(["live"]), signal),
};
