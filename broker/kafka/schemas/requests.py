"""Requests and answers of the registry, apart from HTTP: so they come from this node's port or from other nodes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from anabranch.broker.kafka.schemas.model import (
    VERSION_MAX,
    ErrorKind,
    Kind,
    RegistryError,
    Schema,
    parse_references,
)
from anabranch.broker.kafka.schemas.records import CONTEXT_PREFIX

GLOBAL: Final = "__GLOBAL"
"""Name that stands for the registry as a whole in paths of configs and modes, as an empty one does."""


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """A request: method, path below the registry's prefix with its query, as sent, and body."""

    method: str
    target: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """An answer: HTTP status, and JSON or the text of a schema."""

    status: int
    body: bytes


def answer_of(value: Any) -> RegistryAnswer:
    """Return a successful answer; bytes are sent as they are."""
    return RegistryAnswer(200, value if isinstance(value, bytes) else _json(value))


def failure_of(error: RegistryError) -> RegistryAnswer:
    """Return the answer to a request that is refused."""
    return RegistryAnswer(error.status, _json({"error_code": error.code, "message": str(error)}))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Contents of a request, checked piece by piece. All methods raise RegistryError."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The subject of the path."""
        subject = self.path["subject"]
        if subject.startswith(CONTEXT_PREFIX):
            raise RegistryError(ErrorKind.INVALID_SUBJECT, f"The subject '{subject}' is of a context: none is served")
        if not subject or subject == GLOBAL or any(each < " " for each in subject):
            raise RegistryError(ErrorKind.INVALID_SUBJECT, f"The specified subject {subject!r} is not a valid subject.")
        return subject

    @property
    def scope(self) -> str | None:
        """The subject of a config or mode; None: the registry."""
        return self.subject if self.path.get("subject") not in {None, "", GLOBAL} else None

    @property
    def version(self) -> int | None:
        """The version of the path; None: the last one."""
        text = self.path["version"]
        if text in {"latest", "-1"}:
            return None
        if text.isascii() and text.isdecimal() and 1 <= int(text[:11]) <= VERSION_MAX:
            return int(text)
        raise RegistryError(
            ErrorKind.INVALID_VERSION,
            f"The specified version '{text}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
            'string "latest"',
        )

    @property
    def schema_id(self) -> int:
        """The id of the path."""
        text = self.path["id"]
        if text.isascii() and text.isdecimal():
            return int(text[:19])
        raise RegistryError(404, "HTTP 404 Not Found")

    def flag(self, name: str) -> bool:
        """Return a parameter that is true or false, by default false."""
        return self.query.get(name, "false").lower() == "true"

    def number(self, name: str, default: int) -> int:
        """Return a parameter that is a number."""
        text = self.query.get(name, str(default))
        try:
            return int(text[:19])
        except ValueError:
            raise RegistryError(400, f"the parameter {name} must be a number") from None

    def page(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the part of a list that `offset` and `limit` name; a negative limit: all."""
        offset, limit = max(self.number("offset", 0), 0), self.number("limit", -1)
        return items[offset:] if limit < 0 else items[offset : offset + limit]

    @property
    def schema(self) -> Schema:
        """The schema of the body."""
        text, kind = self.body.get("schema"), self.body.get("schemaType") or Kind.AVRO
        if not isinstance(text, str) or not text.strip():
            raise RegistryError(ErrorKind.INVALID_SCHEMA, "Empty schema")
        if kind not in set(Kind):
            raise RegistryError(ErrorKind.INVALID_SCHEMA, f"Invalid schema: there is no schema type {kind!r}")
        for name in ("metadata", "ruleSet"):
            if self.body.get(name):
                raise RegistryError(ErrorKind.INVALID_SCHEMA, f"Invalid schema: {name} is not served here")
        return Schema(Kind(kind), text, parse_references(self.body.get("references")))

    def optional(self, name: str) -> int | None:
        """Return a number of the body; None: it is missing, or not positive."""
        value = self.body.get(name)
        if value is None:
            return None
        if type(value) is not int or value > VERSION_MAX:
            raise RegistryError(422, f"{name} must be a number")
        return value if value > 0 else None

    def text(self, name: str) -> str:
        """Return a text of the body; empty: it is missing."""
        value = self.body.get(name)
        return value if isinstance(value, str) else ""


def split_target(target: str) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the decoded steps of a path, and its query."""
    path, _, query = target.partition("?")
    steps = [unquote(step) for step in path.strip("/").split("/")]
    return ([] if steps == [""] else steps), dict(parse_qsl(query, keep_blank_values=True))


def parse_body(body: bytes) -> Mapping[str, Any]:
    """Return the object of a body; an empty one has nothing. Raises RegistryError."""
    if not body:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise RegistryError(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise RegistryError(422, "the body must be an object")
    return found
