"""Client of a schema registry (Confluent's HTTP interface), limited to what decoding needs.

A pipeline's driver uses it for the newest version of a subject; its tasks and `consume` use it for the schema that a
record was written with. A schema missing in the registry makes the record undecodable. A registry that does not answer
fails the task instead, which Spark retries, or the command.
"""

import base64
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from anabranch.tables.errors import NotDecodableError, RegistryError, UnknownSchemaError

TIMEOUT_S = 10
REFERENCES_MAX = 100
UNKNOWN_MAX = 100
"""Ids that the registry does not have, after which further ones are not looked up: records may name any number."""
SchemaKey = int | str
"""Id of a schema in a registry, or its GUID, or `globalId:` and Apicurio's global id."""
GLOBAL_ID = "globalId:"
_CCOMPAT = re.compile(r"/apis/ccompat/v\d+/*$")
REFERENCE_FIELDS = {"name", "subject", "version"}
ANSWER_BYTES_MAX = 16 << 20
ERROR_BYTES_MAX = 64 << 10
HEADER_BYTES = 5
"""Size of the header that Confluent's serialisers write: a zero byte, and the id of the schema."""


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects: the credentials are for the registry's host only."""

    def redirect_request(self, *_: object) -> None:
        """Leave the answer as it is: an error."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with those that it refers to, which come before it."""

    schema_id: int
    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    """Avro and JSON: the schema. Protobuf: its serialised FileDescriptorProto in base64."""
    references: Sequence[tuple[str, str]] = ()
    """Name and text of each reference."""


class WriterSchemas(Protocol):
    """Schemas that records were written with."""

    def by_key(self, key: SchemaKey, *, protobuf: bool = False) -> RegisteredSchema:
        """Return a schema. Raises RegistryError and UnknownSchemaError."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Client with a cache of all answers: the schema of an id never changes."""

    url: str
    credentials: str | None = None
    """`user:password`."""
    _known: dict[tuple[SchemaKey, bool], RegisteredSchema] = field(default_factory=dict)
    """By id, and by whether a schema of protobuf is serialised."""
    _unknown: set[SchemaKey] = field(default_factory=set)
    context: ssl.SSLContext | None = None
    """TLS of an https URL; None: that of the machine's authorities."""

    def latest(self, subject: str, *, protobuf: bool = False) -> RegisteredSchema:
        """Return the newest version of a subject. Raises RegistryError and UnknownSchemaError."""
        place = f"/subjects/{quote(subject, safe='')}/versions/latest"
        answer = self._get(place)
        schema_id = self._id_of(answer, place)
        return self._known.get((schema_id, protobuf)) or self._complete(schema_id, answer, protobuf=protobuf)

    def by_id(self, schema_id: int, *, protobuf: bool = False) -> RegisteredSchema:
        """Return a schema. Raises RegistryError and UnknownSchemaError."""
        return self.by_key(schema_id, protobuf=protobuf)

    def by_key(self, key: SchemaKey, *, protobuf: bool = False) -> RegisteredSchema:
        """Return a schema. Raises RegistryError and UnknownSchemaError."""
        if (found := self._known.get((key, protobuf))) is not None:
            return found
        if key not in self._unknown and len(self._unknown) >= UNKNOWN_MAX:
            raise UnknownSchemaError(f"schema {key} is one of more than {UNKNOWN_MAX} unknown ones")
        try:
            if isinstance(key, str) and key.startswith(GLOBAL_ID):
                return self._by_global_id(key)
            answer = self._get(_place_of(key))
        except UnknownSchemaError:
            self._unknown.add(key)
            raise
        return self._complete(key, answer, protobuf=protobuf)

    def _by_global_id(self, key: str) -> RegisteredSchema:
        """Return a schema of Apicurio's own interface, beside that of Confluent, whose ids are those of contents."""
        base = _CCOMPAT.sub("/apis/registry/v3", self.url)
        if base == self.url:
            raise UnknownSchemaError(f"schema {key}: the registry's URL does not end with /apis/ccompat/v7")
        path = f"/ids/globalIds/{key.removeprefix(GLOBAL_ID)}?references=DEREFERENCE"
        body, headers = self._fetch(base, path)
        try:
            found = RegisteredSchema(-1, headers.get("X-Registry-ArtifactType") or "AVRO", body.decode())
        except UnicodeDecodeError:
            raise self._foreign("text", path) from None
        self._known[key, False] = found
        return found

    def _complete(self, key: SchemaKey, answer: dict[str, Any], *, protobuf: bool) -> RegisteredSchema:
        kind = str(answer.get("schemaType") or "AVRO")
        # Only protobuf has a serialised form: a registry may fail when it is asked for that of another kind.
        serialised = protobuf and kind == "PROTOBUF"
        references: dict[str, str] = {}
        self._collect(answer.get("references") or [], references, set(), protobuf=serialised)
        text: str = answer["schema"]
        if serialised:
            text = self._get(f"{_place_of(key)}?format=serialized")["schema"]
        found = RegisteredSchema(key if isinstance(key, int) else -1, kind, text, tuple(references.items()))
        for each in (protobuf,) if kind == "PROTOBUF" else (False, True):
            self._known[key, each] = found
        return found

    def _collect(self, wanted: list[dict[str, Any]], found: dict[str, str], seen: set[str], *, protobuf: bool) -> None:
        """Add those that are referred to, each after its own. `seen` are those that are found, or being looked up."""
        for reference in wanted:
            name = str(reference["name"])
            if name in seen:
                continue
            if len(seen) >= REFERENCES_MAX:
                raise RegistryError(f"{self.url}: a schema refers to more than {REFERENCES_MAX} others")
            seen.add(name)
            place = f"/subjects/{quote(str(reference['subject']), safe='')}/versions/{reference['version']}"
            answer = self._get(place)
            self._collect(answer.get("references") or [], found, seen, protobuf=protobuf)
            if protobuf:
                answer = self._get(f"/schemas/ids/{self._id_of(answer, place)}?format=serialized")
            found[name] = answer["schema"]

    def _id_of(self, answer: dict[str, Any], place: str) -> int:
        if not isinstance(found := answer.get("id"), int):
            raise self._foreign("id", place)
        return found

    def _foreign(self, lacks: str, place: str) -> RegistryError:
        return RegistryError(f"{self.url} is no schema registry: it has no {lacks} at {place}")

    def _get(self, path: str) -> dict[str, Any]:
        """Return an answer with a schema, and with references if it has any, whose fields are there."""
        body, _ = self._fetch(self.url, path)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise self._foreign("JSON", path) from None
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise self._foreign("schema", path)
        references = answer.get("references") or []
        if not isinstance(references, list) or not all(
            isinstance(each, dict) and each.keys() >= REFERENCE_FIELDS for each in references
        ):
            raise self._foreign("references", path)
        return answer

    def _fetch(self, base: str, path: str) -> tuple[bytes, Mapping[str, str]]:
        """Return the body of an answer, and its headers. Raises RegistryError and UnknownSchemaError."""
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, */*;q=0.5"}
        request = Request(base.rstrip("/") + path, headers=headers)  # noqa: S310 - the user names the URL
        if self.credentials:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.credentials.encode()).decode()}")
        try:
            opener = build_opener(_NoRedirects, HTTPSHandler(context=self.context))
            with opener.open(request, timeout=TIMEOUT_S) as response:
                body, found = response.read(ANSWER_BYTES_MAX + 1), response.headers
        except HTTPError as error:
            with error:
                if error.code == 404 and _is_of_registry(error.read(ERROR_BYTES_MAX)):
                    raise UnknownSchemaError(f"the schema registry {self.url} has no {path}") from None
                place = error.headers.get("Location")
                advice = f" and points to {place}: set the URL of the registry itself" if place else ""
                raise RegistryError(f"the schema registry {self.url} answers {error.code} to {path}{advice}") from None
        except (URLError, HTTPException, OSError, ValueError) as error:  # ValueError: of the URL
            reason = error.reason if isinstance(error, URLError) else error
            raise RegistryError(f"the schema registry {self.url} does not answer: {reason}") from None
        if len(body) > ANSWER_BYTES_MAX:
            raise RegistryError(
                f"the schema registry {self.url} answers with more than {ANSWER_BYTES_MAX:,} bytes to {path}"
            )
        return body, found


def _place_of(key: SchemaKey) -> str:
    return f"/schemas/ids/{key}" if isinstance(key, int) else f"/schemas/guids/{key}"


def _is_of_registry(body: bytes) -> bool:
    """Return whether the body of a 404 is that of a registry: other servers do not know the path at all."""
    try:
        return "error_code" in json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return False


def schema_id_of(value: bytes) -> int | None:
    """Return the schema id of a value with Confluent's header and something behind it; None for any other value."""
    return int.from_bytes(value[1:HEADER_BYTES], "big") if len(value) > HEADER_BYTES and value[0] == 0 else None


def split_header(value: bytes) -> tuple[int, bytes]:
    """Return the schema id and the rest of a value with Confluent's header. Raises NotDecodableError."""
    if len(value) < HEADER_BYTES or value[0] != 0:
        raise NotDecodableError(f"no schema header: {len(value)} bytes that begin with {value[:HEADER_BYTES].hex()!r}")
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]
