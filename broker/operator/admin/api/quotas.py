"""Quotas of users, client ids and addresses, changed by the same request that Kafka's tools send (KIP-546)."""

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.entities import QuotaEntity
from anabranch.broker.kafka.quotas.requests import alter_request
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, check

QUOTAS_MAX: Final = 2000
Rate = Annotated[float, Field(allow_inf_nan=False)]


class QuotaPart(Model):
    """A user, a client id or an address."""

    type: Literal["user", "client-id", "ip"]
    name: str | None
    """Null: the default of its type, for all that have no quota of their own."""


Entity = Annotated[list[QuotaPart], Field(min_length=1, max_length=2)]


class QuotaRow(Model):
    """The quotas of a user, a client id, both together, or an address."""

    entity: list[QuotaPart]
    quotas: dict[str, float]
    """Bytes a second of `producer_byte_rate` and `consumer_byte_rate`, per cent of a node's time of
    `request_percentage`, partitions a second of `controller_mutation_rate`, connections a second of
    `connection_creation_rate`."""


class QuotaList(Model):
    """All quotas that are set."""

    quotas: list[QuotaRow]
    more: bool


class QuotaAlteration(Model):
    """Changes of quotas. A value of null removes a quota."""

    entity: Entity
    quotas: Annotated[dict[str, Rate | None], Field(min_length=1)]
    validate_only: bool = False

    @field_validator("entity")
    @classmethod
    def _types_differ(cls, parts: list[QuotaPart]) -> list[QuotaPart]:
        if len({each.type for each in parts}) < len(parts):
            raise ValueError("a type occurs twice")
        return parts


class QuotaChange(Model):
    """A quota that is changed."""

    quota: str
    before: Annotated[float | None, Field(serialization_alias="from")]
    """Null: it was not set."""
    after: Annotated[float | None, Field(serialization_alias="to")]


class QuotaChanges(Model):
    """Changes that were made, or that would be."""

    changes: list[QuotaChange]


class QuotaEndpoints:
    """Endpoints of quotas."""

    def __init__(self, serving: Serving, local: LocalRequests) -> None:
        self._serving = serving
        self._local = local
        altered = "Set and remove quotas of a user, a client id, both together, or an address."
        self.endpoints = [
            Endpoint("GET", "/quotas", "All quotas.", self._list, QuotaList),
            Endpoint("PATCH", "/quotas", altered, self._alter, QuotaChanges, body=QuotaAlteration),
        ]

    async def _list(self, _: Call) -> QuotaList:
        rows = [
            QuotaRow(
                entity=[QuotaPart.model_validate({"type": kind, "name": name}) for kind, name in entity.parts],
                quotas=dict(sorted(quotas.items())),
            )
            for entity, quotas in self._serving.quota_table.all().items()
        ]
        return QuotaList(quotas=rows[:QUOTAS_MAX], more=len(rows) > QUOTAS_MAX)

    async def _alter(self, call: Call) -> QuotaChanges:
        wanted: QuotaAlteration = call.body
        entity = QuotaEntity.of({each.type: each.name for each in wanted.entity})
        before = self._serving.quota_table.all().get(entity, {})
        request = alter_request(entity, wanted.quotas, validate_only=wanted.validate_only)
        for result in (await self._local.call(request, call.user)).entries:
            check(result.error_code, result.error_message)
        return QuotaChanges(
            changes=[
                QuotaChange(quota=name, before=before.get(name), after=after)
                for name, after in wanted.quotas.items()
                if after != before.get(name)
            ]
        )
