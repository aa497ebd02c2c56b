"""Levels of features: permitted changes, and their persistence."""

from pathlib import Path

import pytest

from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.configs.features import (
    GROUP_VERSION,
    METADATA_VERSION,
    NEWEST,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
    Features,
    FeatureUpdate,
    UpgradeType,
)
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.catalog import Catalog

UP, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


async def test_a_level_falls_and_rises_and_is_kept(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    features = Features(ClusterConfigs(catalog), 1)
    assert (features.finalized(), features.epoch) == (NEWEST, 0)
    lower = [
        FeatureUpdate(GROUP_VERSION, 0, SAFE),
        FeatureUpdate(TRANSACTION_VERSION, 1, UNSAFE),
        FeatureUpdate(SHARE_VERSION, 0, SAFE),
        FeatureUpdate(STREAMS_VERSION, 0, SAFE),
    ]
    await features.update(lower, validate_only=True)
    assert (features.finalized(), features.epoch) == (NEWEST, 0)
    await features.update(lower, validate_only=False)
    again = ClusterConfigs(catalog)
    await again.load()
    features = Features(again, 1)
    assert (features.finalized(), features.epoch) == ({METADATA_VERSION: 33, TRANSACTION_VERSION: 1}, 1)
    await features.update(lower, validate_only=False)
    assert features.epoch == 1, "nothing has changed"
    with pytest.raises(KafkaError, match="Can't downgrade to a newer version"):
        await features.update([FeatureUpdate(TRANSACTION_VERSION, 2, SAFE)], validate_only=False)
    await features.update([FeatureUpdate(name, level, UP) for name, level in NEWEST.items()], validate_only=False)
    assert (features.finalized(), features.epoch) == (NEWEST, 2)
    await catalog.close()


async def test_one_bad_update_stops_all(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    features = Features(ClusterConfigs(catalog), 1)
    updates = [FeatureUpdate(GROUP_VERSION, 0, SAFE), FeatureUpdate("no.such", 1, UP)]
    with pytest.raises(KafkaError, match="does not support this feature") as refusal:
        await features.update(updates, validate_only=False)
    assert refusal.value.code == ErrorCode.INVALID_UPDATE_VERSION
    assert features.finalized() == NEWEST
    await catalog.close()


@pytest.mark.parametrize(
    ("level", "kind", "expected"),
    [
        (33, UP, ""),
        (33, SAFE, ""),
        (34, UP, "Local controller 1 only supports versions 33-33"),
        (32, UP, "Local controller 1 only supports versions 33-33"),
        (32, SAFE, "Local controller 1 only supports versions 33-33"),
        (0, UNSAFE, "Local controller 1 only supports versions 33-33"),
        (-1, UP, "A feature version cannot be less than 0."),
    ],
)
async def test_the_version_of_the_metadata_is_fixed(
    tmp_path: Path, level: int, kind: UpgradeType, expected: str
) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    features = Features(ClusterConfigs(catalog), 1)
    update = [FeatureUpdate(METADATA_VERSION, level, kind)]
    if expected:
        with pytest.raises(KafkaError) as refusal:
            await features.update(update, validate_only=False)
        assert refusal.value.code == ErrorCode.INVALID_UPDATE_VERSION
        assert refusal.value.message == (
            "The update failed for all features since the following feature had an error: "
            f"Invalid update version {level} for feature metadata.version. {expected}"
        )
    else:
        await features.update(update, validate_only=False)
    assert (features.level(METADATA_VERSION), features.epoch) == (33, 0)
    await catalog.close()


async def test_an_older_release_has_fewer_features(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    features = Features(ClusterConfigs(catalog), 1, {METADATA_VERSION: 14, TRANSACTION_VERSION: 1})
    assert features.supported == {METADATA_VERSION: (14, 14), TRANSACTION_VERSION: (0, 1)}
    assert features.finalized() == {METADATA_VERSION: 14, TRANSACTION_VERSION: 1}
    assert features.level(GROUP_VERSION) == 0
    for name, level, expected in (
        (GROUP_VERSION, 1, "does not support this feature"),
        (TRANSACTION_VERSION, 2, "only supports versions 0-1"),
        (METADATA_VERSION, 33, "only supports versions 14-14"),
    ):
        with pytest.raises(KafkaError, match=expected):
            await features.update([FeatureUpdate(name, level, UP)], validate_only=False)
    await catalog.close()
