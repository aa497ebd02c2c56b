"""The upkeep of a node's tables, and the port at which its process asks the cluster's own schema registry.

It is imported once there is a table.
"""

import asyncio
import hmac
from base64 import b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from anabranch.addresses import host_port
from anabranch.broker.app.storage import Basis, OpenStorage
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.schemas.requests import RegistryAnswer, RegistryRequest
from anabranch.broker.kafka.topics.tables import TopicTables
from anabranch.broker.node.settings.package_settings import storage_settings
from anabranch.broker.node.settings.table_catalogs import external_catalog
from anabranch.extras import is_installed
from anabranch.tables.process import ColumnProcess
from anabranch.tables.requests import Registry
from anabranch.tables.upkeep.columns import Columns
from anabranch.tables.upkeep.context import OtherCatalogs, UpkeepContext
from anabranch.tables.upkeep.service import TableUpkeep

FOLDER: Final = "tables"
"""Folder in the data directory for files that are being made."""
USER: Final = "tables"
TOKEN_BYTES: Final = 24
HEAD_S_MAX: Final = 10.0
HEAD_BYTES_MAX: Final = 64 << 10


def make_tables(basis: Basis, opened: OpenStorage, serving: Serving) -> TableUpkeep:
    """Build the upkeep of tables. Nothing runs yet."""
    settings = basis.settings
    limits = storage_settings(settings, basis.memory.sizes)
    process = partial(ColumnProcess, memory_bytes_max=settings.tables.memory_bytes)
    context = UpkeepContext(
        catalog=opened.catalog,
        stores=opened.stores,
        cluster=settings.node.cluster,
        node=opened.info.identity,
        now_ms=basis.cautious.now_ms,
        new_uuid=lambda: basis.environment.new_uuid().bytes,
        new_writer_id=basis.new_writer_id,
        columns=Columns(process),
        folder=(settings.node.data_dir / FOLDER).absolute(),
        registry=_make_registry(basis, serving),
        rank=lambda: sum(each.node_id < opened.info.node_id for each in serving.members.living()),
        pace=opened.storage.background,
        prepare_ttl_ms=limits.prepare_ttl_ms,
        delete_delay_ms=limits.delete_delay_ms,
    )
    others = {name: external_catalog(name, table) for name, table in settings.table_catalogs.items()}
    return TableUpkeep(
        context,
        OtherCatalogs(Columns(process), others),
        TopicTables(serving.topics, opened.storage, opened.info.node_id),
    )


def _make_registry(basis: Basis, serving: Serving) -> Callable[[], Awaitable[Registry | None]]:
    settings = basis.settings
    area = settings.tables
    if area.registry is not None:
        secret = area.registry_credentials
        place = Registry(area.registry.rstrip("/"), None if secret is None else secret.reveal())

        async def named() -> Registry | None:
            return place

        return named
    if not settings.schema_registry.enabled or not is_installed("console"):

        async def none() -> Registry | None:
            return None

        return none

    async def ask(request: RegistryRequest) -> RegistryAnswer:
        from anabranch.broker.operator.admin.schema_registry import ask_registry

        return await ask_registry(serving, request)

    port = RegistryPort(ask, basis.environment.random_bytes(TOKEN_BYTES).hex())
    basis.stack.push_async_callback(port.close)
    return port.place


class RegistryPort:
    """A port of this machine for the process that makes columns: GET of the cluster's own registry, and nothing else.

    The admin port may be off, or want TLS, tokens or certificates, which that process has none of. It opens with the
    first question for its place.
    """

    def __init__(self, ask: Callable[[RegistryRequest], Awaitable[RegistryAnswer]], token: str) -> None:
        self._ask: Final = ask
        self._credentials: Final = f"{USER}:{token}"
        self._expected: Final = f"Basic {b64encode(self._credentials.encode()).decode()}"
        self._server: asyncio.Server | None = None

    async def place(self) -> Registry:
        """Return the place of the registry. Raises OSError if no port is free."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Registry(f"http://{host_port(host, port)}", self._credentials)

    async def close(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = await self._answer(head.decode("latin-1"))
            reason = HTTPStatus(answer.status).phrase
            writer.write(
                f"HTTP/1.1 {answer.status} {reason}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n".encode()
                + answer.body
            )
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the process asks again
        finally:
            writer.close()

    async def _answer(self, head: str) -> RegistryAnswer:
        request, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if not hmac.compare_digest(headers.get("authorization", "").encode(), self._expected.encode()):
            return RegistryAnswer(HTTPStatus.UNAUTHORIZED, b"{}")
        method, _, rest = request.partition(" ")
        if method != "GET":
            return RegistryAnswer(HTTPStatus.METHOD_NOT_ALLOWED, b"{}")
        return await self._ask(RegistryRequest("GET", rest.rpartition(" ")[0]))
