"""Iceberg's REST catalog of the tables of topics at the admin port, which only reads.

    /iceberg/v1/...   the paths of `ROUTES`, as in open-api/rest-catalog-open-api.yaml of Apache Iceberg

Every node answers, from the catalog of the cluster and the file of a table's metadata. There is one namespace,
`default`. A table is listed when it has metadata, so from its first snapshot on. It is imported by the first request.

ACLs of a user decide by the table's name, which is that of its topic: DESCRIBE on the topic lists it, READ loads it.
A table that has outlived its topic keeps the name, and so the rights. `broker.operator.admin.access` knows the users.
"""

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from aiohttp import web
from crc32c import crc32c

from anabranch.addresses import normal_host
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.operator.admin.access import TableReader
from anabranch.broker.operator.admin.paths import TABLES_PREFIX
from anabranch.s3stream.catalog.table_values import NamedTable, TableFile
from anabranch.s3stream.errors import NotFound, ObjectNotFound, StorageError
from anabranch.s3stream.store.rules import PLAIN_PREFIX

NAMESPACE: Final = "default"
PAGE_TABLES: Final = 100
"""Tables of a page, unless the client says how many."""
PAGE_TABLES_MAX: Final = 1_000
LOAD_ATTEMPTS: Final = 5
"""Times that metadata is looked up and read: a file that expires in between has a successor."""
REPORT_TYPES: Final = ("scan-report", "commit-report")
READ_ONLY: Final = (
    "tables are written by the nodes, from the records of their topics: produce to the topic, or change its configs"
)
_SEPARATOR: Final = "\x1f"
"""Character between the levels of a namespace."""
_JSON: Final = "application/json"
_TYPES: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "BadRequestException",
    HTTPStatus.UNAUTHORIZED: "NotAuthorizedException",
    HTTPStatus.FORBIDDEN: "ForbiddenException",
    HTTPStatus.NOT_FOUND: "NotFoundException",
    HTTPStatus.NOT_ACCEPTABLE: "UnsupportedOperationException",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableException",
}
LOADS_MAX: Final = 4
"""Metadata files that are in memory at one time: each may have some megabytes."""


class CatalogFailure(Exception):
    """A request fails. The text is the one line to show."""

    def __init__(self, status: HTTPStatus, reason: str, type_: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.type = type_ or _type_of(status)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the catalog."""

    node: Node
    loads: asyncio.Semaphore
    reader: TableReader
    host: str
    """Address of the client, as ACLs have it."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    names: Mapping[str, str]
    """Values of the path's parts in braces."""
    body: bytes

    def may(self, operation: AclOperation, name: str) -> bool:
        """Return whether the client may do an operation to the topic of a table."""
        acls = self.node.serving.acls
        if acls is None or not self.reader.principal:
            return operation is AclOperation.DESCRIBE or self.reader.may_load
        return acls.authorizer.authorize(self.reader.principal, self.host, operation, AclResourceType.TOPIC, name)

    def check_may_load(self) -> str:
        """Return the name of the table that the request is for. Raises CatalogFailure if the client may not load it."""
        # A table's snapshots are a table in a namespace of its name to Spark, which looks for that first.
        check_namespace(self.names["namespace"], "NoSuchTableException")
        name = self.names["table"]
        if self.may(AclOperation.READ, name):
            return name
        who = (
            f"{self.reader.principal} needs READ on the topic {name}" if self.reader.principal else "see admin.records"
        )
        raise CatalogFailure(HTTPStatus.FORBIDDEN, f"you may not load the table {name}: {who}")


def check_namespace(name: str, type_: str = "NoSuchNamespaceException") -> None:
    """Raise CatalogFailure, of a type, unless this is the one namespace."""
    if name != NAMESPACE:
        shown = name.replace(_SEPARATOR, ".")
        raise CatalogFailure(HTTPStatus.NOT_FOUND, f"namespace {shown} does not exist: there is {NAMESPACE}", type_)


# what clients ask for


async def _config(call: Call) -> web.Response:
    """Configuration of clients, and the paths that are served."""
    cluster = call.node.serving.settings.node.cluster
    warehouse = call.query.get("warehouse", "")
    if warehouse not in {"", cluster}:
        reason = f"warehouse {warehouse} does not exist: leave it out, or name the cluster, {cluster}"
        raise CatalogFailure(HTTPStatus.NOT_FOUND, reason, "NoSuchWarehouseException")
    endpoints = [f"{route.method} {route.path}" for route in ROUTES if route.function is not _config]
    return _answer({"defaults": {}, "overrides": {}, "endpoints": endpoints})


async def _list_namespaces(call: Call) -> web.Response:
    """The one namespace, which has none inside."""
    parent = call.query.get("parent", "")
    if parent:
        check_namespace(parent)
    return _answer({"namespaces": [] if parent else [[NAMESPACE]], "next-page-token": None})


async def _load_namespace(call: Call) -> web.Response:
    """Properties of the namespace."""
    check_namespace(call.names["namespace"])
    comment = f"topics of the cluster {call.node.serving.settings.node.cluster} that are tables"
    return _answer({"namespace": [NAMESPACE], "properties": {"comment": comment}})


async def _namespace_exists(call: Call) -> web.Response:
    """Check that a namespace exists."""
    check_namespace(call.names["namespace"])
    return _nothing()


async def _list_tables(call: Call) -> web.Response:
    """Names of the tables with metadata whose topics the client may describe, page by page if it asks for pages."""
    check_namespace(call.names["namespace"])
    known = [table.name for table in await call.node.serving.catalog.tables.list() if table.metadata_file]
    names = sorted(name for name in known if call.may(AclOperation.DESCRIBE, name))
    token: str | None = None
    if "pageToken" in call.query:
        after, limit = _page(call.query)
        names = [name for name in names if name > after]
        if len(names) > limit:
            names = names[:limit]
            token = urlsafe_b64encode(names[-1].encode()).decode()
    identifiers = [{"namespace": [NAMESPACE], "name": name} for name in names]
    return _answer({"identifiers": identifiers, "next-page-token": token})


def _page(query: Mapping[str, str]) -> tuple[str, int]:
    """Return the name before a page, and its size. Raises CatalogFailure."""
    try:
        after = urlsafe_b64decode(query["pageToken"].encode()).decode()
        limit = int(query.get("pageSize", PAGE_TABLES))
    except ValueError:
        raise CatalogFailure(HTTPStatus.BAD_REQUEST, "pageToken or pageSize is not one that was given here") from None
    if limit < 1:
        raise CatalogFailure(HTTPStatus.BAD_REQUEST, f"pageSize must be 1 or more, not {limit}")
    return after, min(limit, PAGE_TABLES_MAX)


async def _table_exists(call: Call) -> web.Response:
    """Check that a table exists and has metadata."""
    await _find(call, call.check_may_load())
    return _nothing()


async def _load_table(call: Call) -> web.Response:
    """Metadata of a table as it is stored, or with the current snapshot alone, and how its files are reached."""
    name = call.check_may_load()
    mode = call.query.get("snapshots", "all")
    if mode not in {"all", "refs"}:
        raise CatalogFailure(HTTPStatus.BAD_REQUEST, f"snapshots must be all or refs, not {mode}")
    async with call.loads:
        for attempt in range(1, LOAD_ATTEMPTS + 1):
            table, metadata = await _find(call, name)
            access = _access_to(call.node, metadata.store)
            store = call.node.stores[metadata.store]
            place = store.uri(metadata.file_key)
            tag = f'"{sha256(json.dumps([place, mode, access]).encode()).hexdigest()[:32]}"'
            if call.headers.get("If-None-Match") == tag:
                return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
            try:
                stored = bytes(await store.get(metadata.file_key, 0, metadata.size_bytes))
            except ObjectNotFound:
                if attempt == LOAD_ATTEMPTS:
                    reason = f"the metadata of table {table.info.name} is missing: {place}"
                    raise CatalogFailure(HTTPStatus.INTERNAL_SERVER_ERROR, reason) from None
                continue
            if crc32c(stored) != metadata.crc32c:
                reason = f"the metadata of table {table.info.name} is damaged: {place} has another CRC32C"
                raise CatalogFailure(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
            body = _load_result(place, stored if mode == "all" else _with_refs_only(stored), access)
            return web.Response(body=body, content_type=_JSON, headers={"ETag": tag})
    raise AssertionError("the last attempt returns or raises")


async def _find(call: Call, name: str) -> tuple[NamedTable, TableFile]:
    """Return a table and the row of its metadata. Raises CatalogFailure if there is none."""
    try:
        table = await call.node.serving.catalog.tables.find(name)
    except NotFound:
        reason = f"table {name} does not exist: does its topic have table.enable=true?"
        raise CatalogFailure(HTTPStatus.NOT_FOUND, reason, "NoSuchTableException") from None
    if table.metadata is None:
        reason = f"table {name} has no snapshot yet: its topic has no committed records, or they are on their way"
        raise CatalogFailure(HTTPStatus.NOT_FOUND, reason, "NoSuchTableException")
    return table, table.metadata


def _with_refs_only(stored: bytes) -> bytes:
    """Return metadata with only those snapshots that a branch or tag names."""
    metadata = json.loads(stored)
    named = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()} | {metadata.get("current-snapshot-id")}
    metadata["snapshots"] = [each for each in metadata.get("snapshots", []) if each["snapshot-id"] in named]
    return json.dumps(metadata).encode()


class _Access(NamedTuple):
    """Settings of a client that reads the files of a table."""

    config: Mapping[str, str]
    credentials: Sequence[Mapping[str, Any]]


def _load_result(place: str, metadata: bytes, access: _Access) -> bytes:
    """Return the answer to a load, with the metadata as it is."""
    rest = {"metadata-location": place, "config": access.config, "storage-credentials": access.credentials}
    return b'{"metadata":%b,%b' % (metadata, json.dumps(rest).encode()[1:])


def _access_to(node: Node, store: str) -> _Access:
    """Return the settings of a store for clients, and the credentials for engines if the operator has set some.

    Raises CatalogFailure if this node does not have the store.
    """
    if store not in node.stores:
        reason = f"the table is in the store {store}, which is not configured on this node: ask another one"
        raise CatalogFailure(HTTPStatus.SERVICE_UNAVAILABLE, reason)
    settings = node.serving.settings
    is_default = store == settings.objects.store
    objects = settings.objects if is_default else settings.stores[store]
    if not objects.bucket:
        return _Access({}, [])
    config = {"client.region": objects.region, "s3.region": objects.region}
    endpoint = settings.tables.s3_endpoint or objects.endpoint
    if endpoint:
        config["s3.endpoint"] = endpoint
    if objects.path_style:
        config["s3.path-style-access"] = "true"
    secret = settings.tables.s3_secret_access_key
    if secret is None or not is_default:
        return _Access(config, [])
    key = {"s3.access-key-id": settings.tables.s3_access_key_id, "s3.secret-access-key": secret.reveal()}
    # In both places: some engines look at the older one only.
    credential = {"prefix": node.stores[store].uri(PLAIN_PREFIX), "config": config | key}
    return _Access(config | key, [credential])


async def _load_credentials(call: Call) -> web.Response:
    """Credentials for the files of a table, if the operator has set some for engines."""
    _, metadata = await _find(call, call.check_may_load())
    return _answer({"storage-credentials": _access_to(call.node, metadata.store).credentials})


async def _report_metrics(call: Call) -> web.Response:
    """A report about a scan, which is counted."""
    call.check_may_load()
    try:
        report = json.loads(call.body)
        kind = report["report-type"]
    except (ValueError, TypeError, KeyError, RecursionError):
        kind = None
    if kind not in REPORT_TYPES:
        raise CatalogFailure(HTTPStatus.BAD_REQUEST, f"expected JSON with a report-type of {' or '.join(REPORT_TYPES)}")
    return _nothing()


@dataclass(frozen=True, slots=True)
class Route:
    """A path of the catalog, in the words of Iceberg's specification."""

    method: str
    path: str
    function: Callable[[Call], Coroutine[Any, Any, web.Response]]

    @property
    def name(self) -> str:
        """Name of the route in counts of requests."""
        return self.function.__name__.lstrip("_")

    @property
    def steps(self) -> Sequence[str]:
        """Parts of the path as clients ask for it: this catalog tells them no prefix."""
        return [step for step in self.path.split("/")[1:] if step != "{prefix}"]


_NAMESPACE_PATH: Final = "/v1/{prefix}/namespaces/{namespace}"
_TABLE_PATH: Final = _NAMESPACE_PATH + "/tables/{table}"
ROUTES: Final = (
    Route("GET", "/v1/config", _config),
    Route("GET", "/v1/{prefix}/namespaces", _list_namespaces),
    Route("GET", _NAMESPACE_PATH, _load_namespace),
    Route("HEAD", _NAMESPACE_PATH, _namespace_exists),
    Route("GET", _NAMESPACE_PATH + "/tables", _list_tables),
    Route("GET", _TABLE_PATH, _load_table),
    Route("HEAD", _TABLE_PATH, _table_exists),
    Route("GET", _TABLE_PATH + "/credentials", _load_credentials),
    Route("POST", _TABLE_PATH + "/metrics", _report_metrics),
)


def find_route(method: str, steps: Sequence[str]) -> tuple[Route, Mapping[str, str]]:
    """Return the route of a path, and the values of its parts in braces. Raises CatalogFailure."""
    for route in ROUTES:
        if route.method != method or len(route.steps) != len(steps):
            continue
        pairs = list(zip(route.steps, steps, strict=True))
        if all(wanted == given or (wanted.startswith("{") and given) for wanted, given in pairs):
            return route, {wanted[1:-1]: given for wanted, given in pairs if wanted.startswith("{")}
    if method in {"GET", "HEAD"}:
        raise CatalogFailure(HTTPStatus.NOT_ACCEPTABLE, "this catalog has tables, and no such path")
    if steps == ["v1", "oauth", "tokens"]:
        reason = (
            "this catalog gives no tokens: set one of the admin port as the client's token, instead of a credential"
        )
        raise CatalogFailure(HTTPStatus.NOT_ACCEPTABLE, reason)
    raise CatalogFailure(HTTPStatus.NOT_ACCEPTABLE, READ_ONLY)


# HTTP


class RestCatalog:
    """The catalog as a node serves it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loads = asyncio.Semaphore(LOADS_MAX)

    async def answer(self, request: web.Request, reader: TableReader) -> web.Response:
        """Answer a request that the admin port has let through, for any path below its prefix."""
        path, _, query = request.raw_path[len(TABLES_PREFIX) :].partition("?")
        steps = [unquote(step) for step in path.rstrip("/").split("/")[1:]]
        try:
            route, names = find_route(request.method, steps)
            counts = self._node.serving.table_requests
            counts[route.name] = counts.get(route.name, 0) + 1
            asked = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
            host = normal_host(request.remote or "")
            body = await request.read()
            return await route.function(
                Call(self._node, self._loads, reader, host, asked, request.headers, names, body)
            )
        except CatalogFailure as error:
            return failure(error.status, str(error), error.type)
        except StorageError as error:
            return failure(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def failure(status: HTTPStatus, reason: str, type_: str = "") -> web.Response:
    """Return the answer to a request that fails, with the name of an exception in Iceberg's Java."""
    error = {"message": " ".join(reason.split()), "type": type_ or _type_of(status), "code": int(status)}
    return _answer({"error": error}, status)


def _type_of(status: HTTPStatus) -> str:
    return _TYPES.get(status, "InternalServerError" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "RESTException")


def _answer(value: object, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(status=status, body=json.dumps(value).encode(), content_type=_JSON)


def _nothing() -> web.Response:
    return web.Response(status=HTTPStatus.NO_CONTENT)


def table_paths() -> dict[str, Any]:
    """Return the catalog's paths for the OpenAPI document."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        names = [step[1:-1] for step in route.steps if step.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        paths.setdefault(f"{TABLES_PREFIX}/{'/'.join(route.steps)}", {})[route.method.lower()] = {
            "summary": (route.function.__doc__ or "").partition("\n")[0].rstrip("."),
            "tags": ["tables"],
            "parameters": parameters,
            "responses": {"200": {"description": "The answer.", "content": {_JSON: {}}}},
        }
    return paths
