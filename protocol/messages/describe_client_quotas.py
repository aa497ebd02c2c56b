"""DescribeClientQuotas: the quotas of clients (KIP-546).

Versions:
    v0  first version
    v1  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 48


@message
class ComponentData:
    entity_type: str = wire.string("0+")
    match_type: int = wire.int8("0+")
    match: str | None = wire.string("0+", nullable="0+")


@message(versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    components: Sequence[ComponentData] = wire.array(ComponentData, "0+")
    strict: bool = wire.boolean("0+")


@message
class EntityData:
    entity_type: str = wire.string("0+")
    entity_name: str | None = wire.string("0+", nullable="0+")


@message
class ValueData:
    key: str = wire.string("0+")
    value: float = wire.float64("0+")


@message
class EntryData:
    entity: Sequence[EntityData] = wire.array(EntityData, "0+")
    values: Sequence[ValueData] = wire.array(ValueData, "0+")


@message(versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    entries: Sequence[EntryData] | None = wire.array(EntryData, "0+", nullable="0+")
