"""The request that changes quotas (KIP-546), as commands and the admin API send it."""

from collections.abc import Mapping

from anabranch.broker.kafka.quotas.entities import QuotaEntity
from anabranch.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData


def alter_request(
    entity: QuotaEntity, changes: Mapping[str, float | None], *, validate_only: bool
) -> AlterClientQuotasRequest:
    """Return the request that sets quotas of an entity, and removes those whose value is None."""
    entry = EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
        ops=[OpData(key=name, value=value or 0.0, remove=value is None) for name, value in changes.items()],
    )
    return AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
