"""The quotas that are set, by entity: a part of the cluster's configs, which every node follows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.broker.kafka.configs.cluster import CLIENT_QUOTA, ClusterConfigs
from anabranch.broker.kafka.quotas.entities import CLIENT_ID, ENTITY_TYPES, IP, USER, QuotaEntity
from anabranch.protocol.errors import ErrorCode, KafkaError

EXACT, DEFAULT, SPECIFIED = range(3)
"""Match types of a filter: an entity of that name; the default; any."""


@dataclass(frozen=True, slots=True)
class FilterComponent:
    """A condition of a filter, as a client sends it."""

    entity_type: str
    match_type: int
    match: str | None


class QuotaTable:
    """Quotas by entity."""

    def __init__(self, configs: ClusterConfigs) -> None:
        self._configs = configs

    def all(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Return the quotas of all entities."""
        return {
            QuotaEntity.parse(name): {key: float(value) for key, value in self._configs.get(CLIENT_QUOTA, name).items()}
            for name in self._configs.names(CLIENT_QUOTA)
        }

    def find(self, components: Iterable[FilterComponent], *, strict: bool) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Return the quotas of the entities that match all components.

        A strict filter matches entities of the named types only. Raises INVALID_REQUEST and UNSUPPORTED_VERSION, with
        Apache Kafka's messages, for an invalid filter.
        """
        wanted = {component.entity_type: component for component in _checked(components)}
        return {
            entity: quotas
            for entity, quotas in self.all().items()
            if _matches(dict(entity.parts), wanted, strict=strict)
        }

    async def alter(self, entity: QuotaEntity, operations: Mapping[str, float | None]) -> None:
        """Set and remove quotas of an entity. Raises CatalogError."""
        await self._configs.alter(
            CLIENT_QUOTA,
            entity.key,
            set_configs={key: repr(value) for key, value in operations.items() if value is not None},
            unset=[key for key, value in operations.items() if value is None],
        )


def _checked(components: Iterable[FilterComponent]) -> Iterable[FilterComponent]:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in seen:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type == EXACT:
            if component.match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        elif component.match_type in {DEFAULT, SPECIFIED}:
            if component.match is not None:
                name = "MATCH_TYPE_DEFAULT" if component.match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
                raise _invalid(f"Request specified {name}, but also specified a match string.")
        else:
            raise _invalid(f"Unknown match type {component.match_type}")
        seen.add(kind)
        yield component
    if IP in seen and seen & {USER, CLIENT_ID}:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )


def _matches(names: Mapping[str, str | None], wanted: Mapping[str, FilterComponent], *, strict: bool) -> bool:
    if strict and len(names) != len(wanted):
        return False
    return all(
        kind in names and (component.match_type == SPECIFIED or names[kind] == component.match)
        for kind, component in wanted.items()
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
