"""UpdateFeatures: raise or lower finalized features (KIP-584).

Versions:
    v0  first version. flexible
    v1  request adds feature_updates.upgrade_type, validate_only; drops feature_updates.allow_downgrade
    v2  response drops results
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 57


@message
class FeatureUpdateKey:
    feature: str = wire.string("0+")
    max_version_level: int = wire.int16("0+")
    allow_downgrade: bool = wire.boolean("0")
    upgrade_type: int = wire.int8("1+", default=1)


@message(versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    timeout_ms: int = wire.int32("0+", default=60000)
    feature_updates: Sequence[FeatureUpdateKey] = wire.array(FeatureUpdateKey, "0+")
    validate_only: bool = wire.boolean("1+")


@message
class UpdatableFeatureResult:
    feature: str = wire.string("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")


@message(versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    results: Sequence[UpdatableFeatureResult] = wire.array(UpdatableFeatureResult, "0-1", ignorable=True)
