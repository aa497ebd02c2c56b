"""Schemas of a schema registry, by their ids: fetched when a record that is shown needs them, and kept.

The registry is the one of the settings, or else the cluster's own. The schema of an id never changes. One that cannot
be had is asked for again after a pause. Requests go to the URL of the settings only, without redirects; time, bytes and
the number of schemas are bounded.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.operator.admin.api.decoder import SOURCE_CHARACTERS_MAX, DecodeError, SchemaSource

TIMEOUT_S: Final = 3.0
"""Time for a schema with those that it refers to."""
ANSWER_BYTES_MAX: Final = 1 << 20
SCHEMAS_MAX: Final = 500
AT_ONCE_MAX: Final = 20
"""Schemas that are fetched for one batch of records."""
REFERENCES_MAX: Final = 50
REFERENCE_DEPTH_MAX: Final = 20
FAILURE_S: Final = 30.0
"""Time for which a failure is believed."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of Avro or protobuf, a JSON Schema, which is not needed to read JSON, or a reason why there is none."""

    source: SchemaSource | None = None
    failure: str = ""
    failed_s: float = 0.0


class _RegistryError(Exception):
    """The registry has no such schema, or gives an invalid answer."""


_Get = Callable[[str], Awaitable[dict[str, Any]]]
"""Returns the answer of the registry to a GET of a path."""


def _check_status(status: int) -> None:
    if status == HTTPStatus.NOT_FOUND:
        raise _RegistryError("the schema registry does not have it")
    if status != HTTPStatus.OK:
        raise _RegistryError(f"the schema registry answers {status}")


class Schemas:
    """The schemas that are known."""

    def __init__(self, settings: AdminSettings, serving: Serving | None = None) -> None:
        """Ask the registry of the settings, or else that of the cluster which the node serves."""
        self._serving = serving
        self._url = (settings.schema_registry_url or "").rstrip("/")
        secret = settings.schema_registry_credentials
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if secret is not None:
            self._headers["Authorization"] = f"Basic {b64encode(secret.reveal().encode()).decode()}"
        self._known: dict[int, Schema] = {}

    def current(self) -> Mapping[int, Schema] | None:
        """Return schemas by id, and failures that are still believed; None: there is no registry."""
        now_s = asyncio.get_running_loop().time()
        for schema_id, schema in list(self._known.items()):
            if schema.failure and now_s - schema.failed_s > FAILURE_S:
                del self._known[schema_id]
        return self._known if self._url or self._has_own() else None

    def _has_own(self) -> bool:
        from anabranch.broker.operator.admin.schema_registry import has_registry

        return self._serving is not None and has_registry(self._serving)

    async def load(self, ids: Iterable[int]) -> None:
        """Fetch schemas that are not known. Those that cannot be had are known by the reason."""
        wanted = sorted(set(ids) - self._known.keys())[:AT_ONCE_MAX]
        if not wanted:
            return
        async with AsyncExitStack() as stack:
            get: _Get = self._get_own
            if self._url:
                timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
                session = await stack.enter_async_context(aiohttp.ClientSession(headers=self._headers, timeout=timeout))
                get = partial(self._get, session)
            async with asyncio.TaskGroup() as group:
                for schema_id in wanted:
                    group.create_task(self._load(get, schema_id))

    async def _load(self, get: _Get, schema_id: int) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                schema = await self._fetch(get, schema_id)
        except (_RegistryError, DecodeError) as error:
            schema = Schema(failure=f"schema {schema_id}: {error}", failed_s=asyncio.get_running_loop().time())
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error) or type(error).__name__
            failure = f"schema {schema_id}: the schema registry does not answer as it should: {reason}"
            schema = Schema(failure=failure, failed_s=asyncio.get_running_loop().time())
        while len(self._known) >= SCHEMAS_MAX:
            del self._known[next(iter(self._known))]
        self._known[schema_id] = schema

    async def _fetch(self, get: _Get, schema_id: int) -> Schema:
        answer = await get(f"/schemas/ids/{schema_id}")
        kind = answer.get("schemaType") or "AVRO"
        if kind == "JSON":
            return Schema()
        if kind not in {"AVRO", "PROTOBUF"}:
            raise _RegistryError(f"{str(kind).lower()} is not decoded here")
        references: dict[str, str] = {}
        await self._collect(get, answer, references, 0)
        return Schema(SchemaSource("AVRO" if kind == "AVRO" else "PROTOBUF", str(answer["schema"]), references))

    async def _collect(self, get: _Get, answer: Mapping[str, Any], found: dict[str, str], depth: int) -> None:
        """Add the schemas that one refers to, each after those that it refers to itself."""
        for reference in answer.get("references") or ():
            name = str(reference["name"])
            if name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise _RegistryError(f"it refers to more than {REFERENCES_MAX} others")
            if depth >= REFERENCE_DEPTH_MAX:
                raise _RegistryError(f"it refers to others over more than {REFERENCE_DEPTH_MAX} steps")
            place = f"/subjects/{quote(str(reference['subject']), safe='')}/versions/{int(reference['version'])}"
            referred = await get(place)
            await self._collect(get, referred, found, depth + 1)
            found[name] = str(referred["schema"])
            if sum(map(len, found.values())) > SOURCE_CHARACTERS_MAX:
                raise _RegistryError(f"those that it refers to are longer than {SOURCE_CHARACTERS_MAX} characters")

    async def _get_own(self, path: str) -> dict[str, Any]:
        """Return the answer of the cluster's own registry."""
        from anabranch.broker.kafka.schemas.requests import RegistryRequest
        from anabranch.broker.operator.admin.schema_registry import ask_registry

        assert self._serving is not None, "there is a registry"
        answer = await ask_registry(self._serving, RegistryRequest("GET", path))
        _check_status(answer.status)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    async def _get(self, session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
        async with session.get(self._url + path, allow_redirects=False) as response:
            _check_status(response.status)
            body = await response.content.read(ANSWER_BYTES_MAX + 1)
            while len(body) <= ANSWER_BYTES_MAX and (more := await response.content.read(ANSWER_BYTES_MAX)):
                body += more
        if len(body) > ANSWER_BYTES_MAX:
            raise _RegistryError(f"the schema registry's answer is larger than {ANSWER_BYTES_MAX} bytes")
        found = json.loads(body)
        if not isinstance(found, dict):
            raise _RegistryError("the schema registry's answer is no object")
        return found
