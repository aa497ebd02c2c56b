"""AlterClientQuotas: change the quotas of clients (KIP-546).

Versions:
    v0  first version
    v1  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 49


@message
class EntityData:
    """An element of `EntryData.entity`."""

    entity_type: str = wire.string("0+")
    entity_name: str | None = wire.string("0+", nullable="0+")


@message
class OpData:
    """An element of `EntryData.ops`."""

    key: str = wire.string("0+")
    value: float = wire.float64("0+")
    remove: bool = wire.boolean("0+")


@message
class EntryData:
    """An element of `AlterClientQuotasRequest.entries`."""

    entity: Sequence[EntityData] = wire.array(EntityData, "0+")
    ops: Sequence[OpData] = wire.array(OpData, "0+")


@message(versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """Request of the AlterClientQuotas API."""

    entries: Sequence[EntryData] = wire.array(EntryData, "0+")
    validate_only: bool = wire.boolean("0+")


@message
class EntryDataResponse:
    """An element of `AlterClientQuotasResponse.entries`."""

    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    entity: Sequence[EntityData] = wire.array(EntityData, "0+")


@message(versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """Response of the AlterClientQuotas API."""

    throttle_time_ms: int = wire.int32("0+")
    entries: Sequence[EntryDataResponse] = wire.array(EntryDataResponse, "0+")
