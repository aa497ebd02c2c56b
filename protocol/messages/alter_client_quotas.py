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
    entity_type: str = wire.string("0+")
    entity_name: str | None = wire.string("0+", nullable="0+")


@message
class OpData:
    key: str = wire.string("0+")
    value: float = wire.float64("0+")
    remove: bool = wire.boolean("0+")


@message
class EntryData:
    entity: Sequence[EntityData] = wire.array(EntityData, "0+")
    ops: Sequence[OpData] = wire.array(OpData, "0+")


@message(versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    entries: Sequence[EntryData] = wire.array(EntryData, "0+")
    validate_only: bool = wire.boolean("0+")


@message
class EntryDataResponse:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    entity: Sequence[EntityData] = wire.array(EntityData, "0+")


@message(versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: int = wire.int32("0+")
    entries: Sequence[EntryDataResponse] = wire.array(EntryDataResponse, "0+")
