// All pages, by their routes.
import { AclsPage } from "./acls.js";
import { AuditPage } from "./audit.js";
import { BalancePage } from "./balance.js";
import { ClusterPage } from "./cluster.js";
import { ConnectPage } from "./connect.js";
import { CostPage } from "./cost.js";
import { TokensPage } from "./delegation_tokens.js";
import { GroupPage } from "./group.js";
import { GroupsPage } from "./groups.js";
import { NodePage } from "./node.js";
import { NotFoundPage } from "./not_found.js";
import { PartitionPage } from "./partition.js";
import { QuotasPage } from "./quotas.js";
import { RecordsPage } from "./records.js";
import { SchemaPage } from "./schema.js";
import { SchemasPage } from "./schemas.js";
import { StoragePage } from "./storage.js";
import { TablePage } from "./table.js";
import { TablesPage } from "./tables.js";
import { TopicPage } from "./topic.js";
import { TopicsPage } from "./topics.js";
import { TransactionsPage } from "./transactions.js";
import { UsersPage } from "./users.js";

/** Routes: a part in braces is a parameter of the page's component. */
const ROUTES = [
  ["", ClusterPage, () => "Cluster"],
  ["nodes/{node}", NodePage, ({ node }) => `Node ${node}`],
  ["connect", ConnectPage, () => "Kafka Connect"],
  ["balance", BalancePage, () => "Balance"],
  ["cost", CostPage, () => "Cost"],
  ["topics", TopicsPage, () => "Topics"],
  ["topics/{topic}", TopicPage, ({ topic }) => topic],
  ["topics/{topic}/records", RecordsPage, ({ topic }) => `Records of ${topic}`],
  ["topics/{topic}/partitions/{partition}", PartitionPage, ({ topic, partition }) => `${topic} ${partition}`],
  ["schemas", SchemasPage, () => "Schemas"],
  ["schemas/{subject}", SchemaPage, ({ subject }) => subject],
  ["tables", TablesPage, () => "Tables"],
  ["tables/{table}", TablePage, ({ table }) => table],
  ["groups", GroupsPage, () => "Groups"],
  ["groups/{group}", GroupPage, ({ group }) => group],
  ["transactions", TransactionsPage, () => "Transactions"],
  ["storage", StoragePage, () => "Storage"],
  ["security", UsersPage, () => "Users"],
  ["security/acls", AclsPage, () => "ACLs"],
  ["security/tokens", TokensPage, () => "Delegation tokens"],
  ["quotas", QuotasPage, () => "Quotas"],
  ["audit", AuditPage, () => "Audit log"],
];

/** Return the page of a path: {component, title, parameters, name}; the name is different for each page. */
export function findPage(path) {
  for (const [route, component, title] of ROUTES) {
    const parameters = match(route.split("/").filter(Boolean), path);
    if (parameters) return { component, title: title(parameters), parameters, name: `${route} ${path.join("/")}` };
  }
  return { component: NotFoundPage, title: "Not found", parameters: {}, name: "not found" };
}

/** Return the parameters of a path that a route describes, or null. */
function match(route, path) {
  if (route.length !== path.length) return null;
  const parameters = {};
  for (const [index, part] of route.entries()) {
    if (part.startsWith("{")) parameters[part.slice(1, -1)] = path[index];
    else if (part !== path[index]) return null;
  }
  return parameters;
}
