"""Keys and values of records as JSON, as their schemas in a registry say, for `consume`.

The id of the schema is in the header that Confluent's serialisers write. Payloads are decoded by a child process, which
they cannot harm more than that. What cannot be decoded stays as it is stored, and is told on standard error.
"""

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import click

from anabranch.broker.operator.admin.api.decoder import DecodeError, SchemaDecoder, SchemaKind, SchemaSource
from anabranch.broker.operator.admin.paths import REGISTRY_PREFIX
from anabranch.broker.operator.cli.admin_port import AdminOptions, NodeOptions
from anabranch.broker.operator.cli.client import CommandClient
from anabranch.broker.operator.cli.record_lines import ReadRecord
from anabranch.client.errors import ClientError
from anabranch.client.properties import REGISTRY_LOGIN, REGISTRY_URL
from anabranch.extras import MissingExtra, install_command, is_installed
from anabranch.tables.errors import RegistryError, UnknownSchemaError
from anabranch.tables.registry import HEADER_BYTES, SchemaRegistry, schema_id_of

TEXT_CHARACTERS_MAX: Final = 4 << 20
"""Characters of the JSON of a key or value."""
KINDS: Final[dict[str, SchemaKind]] = {"AVRO": "AVRO", "PROTOBUF": "PROTOBUF"}
"""Kinds of schemas that are needed to decode. The JSON of a JSON Schema follows the header as it is."""


def find_registry(client: CommandClient, url: str | None) -> SchemaRegistry:
    """Return the registry of a URL, else of the properties, else that of the cluster at its admin port.

    The login of the properties is sent to no other URL than theirs, if they have one. Raises ClickException.
    """
    named = client.properties.get(REGISTRY_URL)
    found = url or named
    if found is None:
        port = NodeOptions(AdminOptions(None, profile=client.profile), client).find()
        login = f"token:{port.token}" if port.token else None
        return SchemaRegistry(port.url + REGISTRY_PREFIX, login, context=port.context)
    if not found.startswith(("http://", "https://")):
        where = "--schema-registry" if url else f"property {REGISTRY_URL}"
        raise click.UsageError(f"{where}: expected the URL of a schema registry, found {found!r}")
    return SchemaRegistry(found, client.properties.get(REGISTRY_LOGIN) if named in {None, found} else None)


class SchemaView:
    """Shows keys and values as JSON. A context: leaving it ends the process that decodes, and tells what is left to."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._decoder = SchemaDecoder(TEXT_CHARACTERS_MAX)
        self._known: dict[int, SchemaSource | DecodeError | None] = {}
        """By id: the schema, why there is none, or None for a JSON Schema."""
        self._told: set[int] = set()
        """Schemas of which a failure was told."""
        self._untold = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._decoder.close()
        if self._untold:
            click.echo(f"{self._untold:,} more could not be decoded", err=True)

    def decode(self, records: Sequence[ReadRecord]) -> Sequence[ReadRecord]:
        """Return records with what can be decoded as JSON. Raises ClientError, MissingExtra."""
        return [
            each._replace(key=self._shown(each, "key", each.key), value=self._shown(each, "value", each.value))
            for each in records
        ]

    def _shown(self, record: ReadRecord, part: str, data: bytes | None) -> bytes | None:
        schema_id = None if data is None else schema_id_of(data)
        if data is None or not schema_id:  # ids begin at 1
            return data
        try:
            source = self._source(schema_id)
            body = data[HEADER_BYTES:]
            return _checked_json(body) if source is None else self._decoded(schema_id, source, body)
        except DecodeError as error:
            self._tell(
                schema_id, f"{record.topic}-{record.partition}:{record.offset}, {part}: schema {schema_id}: {error}"
            )
            return data

    def _decoded(self, schema_id: int, source: SchemaSource, body: bytes) -> bytes:
        text, is_cut = self._decoder.decode(schema_id, source, body)
        if is_cut:
            raise DecodeError(f"longer than {TEXT_CHARACTERS_MAX:,} characters as JSON")
        return text.encode()

    def _source(self, schema_id: int) -> SchemaSource | None:
        """Return a schema; None: a JSON Schema. Raises DecodeError, ClientError, MissingExtra."""
        if schema_id not in self._known:
            try:
                self._known[schema_id] = self._fetch(schema_id)
            except DecodeError as error:
                self._known[schema_id] = error
        found = self._known[schema_id]
        if isinstance(found, DecodeError):
            raise found
        return found

    def _fetch(self, schema_id: int) -> SchemaSource | None:
        try:
            schema = self._registry.by_id(schema_id)
        except UnknownSchemaError:
            raise DecodeError(f"the schema registry {self._registry.url} does not have it") from None
        except RegistryError as error:
            raise ClientError(f"{error}; --schema-registry names another") from None
        if schema.kind == "JSON":
            return None
        if schema.kind not in KINDS:
            raise DecodeError(f"{schema.kind.lower()} is not decoded here")
        kind = KINDS[schema.kind]
        if not is_installed(kind.lower()):
            raise MissingExtra(f"schema {schema_id} is one of {kind.capitalize()}: {install_command(kind.lower())}")
        return SchemaSource(kind, schema.text, dict(schema.references))

    def _tell(self, schema_id: int, failure: str) -> None:
        """Tell the first failure of each schema."""
        if schema_id in self._told:
            self._untold += 1
            return
        self._told.add(schema_id)
        click.echo(f"{failure}; shown as it is stored", err=True)


def _checked_json(body: bytes) -> bytes:
    """Return JSON as it is. Raises DecodeError: bytes without a header may begin with the id of a schema by chance."""
    try:
        json.loads(body.decode(), parse_int=str)  # an int has a limit of digits that JSON does not have
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the payload is no JSON: {error}") from None
    return body
