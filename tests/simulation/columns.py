"""The process that makes columns, in the simulation: its requests are answered at once, by the same code.

The schema registry that it asks is the world's.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.tables.errors import RegistryError, UnknownSchemaError
from anabranch.tables.process import ColumnProcess, ColumnsError
from anabranch.tables.registry import SchemaRegistry
from anabranch.tables.requests import Registry
from anabranch.tables.worker import Worker

REGISTRY_URL = "http://registry"


class SimRegistry:
    """A schema registry."""

    def __init__(self) -> None:
        self.is_away = False
        self._schemas: list[Mapping[str, str]] = []
        """Answers about schemas, by id from 1."""
        self._newest: dict[str, int] = {}
        """Id of the newest version of each subject."""

    def register(self, subject: str, kind: str, schema: str, serialised: str = "") -> int:
        """Add a version of a subject; returns its id. `serialised` is protobuf's descriptor in base64."""
        self._schemas.append({"schemaType": kind, "schema": schema, "serialised": serialised})
        self._newest[subject] = len(self._schemas)
        return len(self._schemas)

    def answer(self, path: str) -> Mapping[str, Any]:
        """Return the answer to a GET. Raises RegistryError and UnknownSchemaError."""
        if self.is_away:
            raise RegistryError("simulated: the registry does not answer")
        place, _, query = path.partition("?")
        parts = place.strip("/").split("/")
        schema_id = self._newest.get(parts[1], 0) if parts[0] == "subjects" else int(parts[2])
        if not 0 < schema_id <= len(self._schemas):
            raise UnknownSchemaError(f"simulated: the registry has no {path}")
        found = self._schemas[schema_id - 1]
        schema = found["serialised"] if query == "format=serialized" else found["schema"]
        return {"id": schema_id, "schemaType": found["schemaType"], "schema": schema}


@dataclass(frozen=True, slots=True)
class _RegistryClient(SchemaRegistry):
    """Client of the world's registry."""

    registry: SimRegistry = field(default_factory=SimRegistry)

    def _fetch(self, _base: str, path: str) -> tuple[bytes, Mapping[str, str]]:
        return json.dumps(self.registry.answer(path)).encode(), {}


class _Worker(Worker):
    """Asks the world's registry."""

    def __init__(self, registry: SimRegistry) -> None:
        super().__init__(lambda _progress: None)
        self._registry = registry

    def _registries(self, places: Iterable[Registry | None]) -> dict[Registry, SchemaRegistry]:
        return {
            place: _RegistryClient(each.url, each.credentials, each._known, registry=self._registry)
            for place, each in super()._registries(places).items()
        }


class SimColumns(ColumnProcess):
    """Answers in this process: what it makes depends on the request and the registry alone, and so does the run."""

    def __init__(self, registry: SimRegistry, *, memory_bytes_max: int) -> None:
        self._worker = _Worker(registry)
        self._at = None
        self.cpu_s = 0.0

    @property
    def process_id(self) -> None:
        return None

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _ask(self, request: Mapping[str, Any], _attempts: int = 1) -> dict[str, Any]:
        answer = self._worker.answer(json.loads(json.dumps(request)))
        if "error" in answer:
            raise ColumnsError(answer["error"], answer["text"])
        return answer
