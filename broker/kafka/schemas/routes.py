"""The paths of the registry: Confluent's REST API, version 1."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anabranch.broker.kafka.schemas.changes import Change, Changes
from anabranch.broker.kafka.schemas.model import RegistryError
from anabranch.broker.kafka.schemas.queries import Queries

Query = Callable[[Queries, Any], Awaitable[Any]]
Decision = Callable[[Changes, Any], Awaitable[Change]]


@dataclass(frozen=True, slots=True)
class Route:
    """A method of a path, whose steps in braces are arguments, and the function that answers."""

    method: str
    path: str
    summary: str
    query: Query | None = None
    """A question."""
    change: Decision | None = None
    """A change. A route has either."""

    @property
    def steps(self) -> Sequence[str]:
        """Steps of the path."""
        return self.path.strip("/").split("/") if self.path != "/" else ()

    def match(self, steps: Sequence[str]) -> Mapping[str, str] | None:
        """Return the arguments in a path; None: it is another one."""
        own = self.steps
        if len(own) != len(steps):
            return None
        found = {}
        for pattern, step in zip(own, steps, strict=True):
            if pattern.startswith("{"):
                found[pattern[1:-1]] = step
            elif pattern != step:
                return None
        return found


_VERSIONS: Final = "/subjects/{subject}/versions"
_CHECKS: Final = "/compatibility/subjects/{subject}/versions"
ROUTES: Final = (
    Route("GET", "/", "Nothing: the registry answers.", Queries.nothing),
    Route("GET", "/contexts", "Contexts: the default one.", Queries.contexts),
    Route("GET", "/schemas", "All versions of all subjects.", Queries.schemas),
    Route("GET", "/schemas/types", "Formats of schemas.", Queries.types),
    Route("GET", "/schemas/ids/{id}", "A schema by its id.", Queries.schema),
    Route("GET", "/schemas/ids/{id}/schema", "The text of a schema.", Queries.schema_text),
    Route("GET", "/schemas/ids/{id}/subjects", "The subjects that have a schema.", Queries.subjects_of_id),
    Route("GET", "/schemas/ids/{id}/versions", "The versions that are a schema.", Queries.versions_of_id),
    Route("GET", "/subjects", "All subjects.", Queries.subjects),
    Route("POST", "/subjects/{subject}", "The version of a subject that a schema is.", Queries.find),
    Route("DELETE", "/subjects/{subject}", "Delete a subject.", change=Changes.delete_subject),
    Route("GET", _VERSIONS, "The versions of a subject.", Queries.versions),
    Route("POST", _VERSIONS, "Register a schema.", change=Changes.register),
    Route("GET", f"{_VERSIONS}/{{version}}", "A version of a subject, or `latest`.", Queries.version),
    Route("DELETE", f"{_VERSIONS}/{{version}}", "Delete a version.", change=Changes.delete_version),
    Route("GET", f"{_VERSIONS}/{{version}}/schema", "The text of a version.", Queries.version_text),
    Route("GET", f"{_VERSIONS}/{{version}}/referencedby", "Ids of schemas that refer to it.", Queries.referring),
    Route("POST", _CHECKS, "Compare a schema with the versions that the level names.", Queries.check),
    Route("POST", f"{_CHECKS}/{{version}}", "Compare a schema with a version.", Queries.check),
    Route("GET", "/config", "The level of compatibility of the registry.", Queries.level),
    Route("PUT", "/config", "Set the level of the registry.", change=Changes.set_level),
    Route("DELETE", "/config", "Go back to the level of the settings.", change=Changes.delete_level),
    Route("GET", "/config/{subject}", "The level of a subject.", Queries.level),
    Route("PUT", "/config/{subject}", "Set the level of a subject.", change=Changes.set_level),
    Route("DELETE", "/config/{subject}", "Withdraw the level of a subject.", change=Changes.delete_level),
    Route("GET", "/mode", "The mode of the registry.", Queries.mode),
    Route("PUT", "/mode", "Set the mode of the registry.", change=Changes.set_mode),
    Route("DELETE", "/mode", "Go back to READWRITE.", change=Changes.delete_mode),
    Route("GET", "/mode/{subject}", "The mode of a subject.", Queries.mode),
    Route("PUT", "/mode/{subject}", "Set the mode of a subject.", change=Changes.set_mode),
    Route("DELETE", "/mode/{subject}", "Withdraw the mode of a subject.", change=Changes.delete_mode),
)


def find_route(method: str, steps: Sequence[str]) -> tuple[Route, Mapping[str, str]]:
    """Return the route of a request, and the arguments in its path. Raises RegistryError: 404, 405."""
    is_known = False
    for route in ROUTES:
        found = route.match(steps)
        if found is not None:
            if route.method == method:
                return route, found
            is_known = True
    raise RegistryError(405, "HTTP 405 Method Not Allowed") if is_known else RegistryError(404, "HTTP 404 Not Found")
