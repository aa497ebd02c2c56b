"""Features (KIP-584): the levels that this node supports, the finalized level of the cluster, and changes of it.

A lower level turns off what the newer one introduced. Below `group.version` 1 the consumer protocol of KIP-848 is
refused, below `share.version` 1 share groups are, and below `streams.version` 1 streams groups. Below `share.version` 2
share groups have no dead-letter topics (KIP-1191). Below `transaction.version` 2 clients use the transactions before
the second part of KIP-890.

`metadata.version` exists for tools that read a cluster's version from it. Since there is no metadata log, it has one
level: that of the Apache Kafka version whose behaviour this node follows, or that it presents itself as.

`anabranch.version` is the cluster's level in the catalog (docs/adr/0046-levels-of-a-cluster.md). It only rises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from anabranch.broker.kafka.configs.cluster import FEATURES, ClusterConfigs
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.schema import FIRST_ADDITIVE
from anabranch.s3stream.catalog.schema import NEWEST as NEWEST_LEVEL
from anabranch.s3stream.errors import CatalogError, CatalogUnavailable

CLUSTER_LEVEL: Final = "anabranch.version"
GROUP_VERSION: Final = "group.version"
METADATA_VERSION: Final = "metadata.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"
TRANSACTION_VERSION: Final = "transaction.version"
METADATA_LEVEL: Final = 33
"""Level of Apache Kafka 4.4 (4.4-IV2)."""
NEWEST: Final[Mapping[str, int]] = MappingProxyType(
    {
        GROUP_VERSION: 1,
        METADATA_VERSION: METADATA_LEVEL,
        SHARE_VERSION: 2,
        STREAMS_VERSION: 1,
        TRANSACTION_VERSION: 2,
    }
)
"""Highest levels that the node has. At 0 a feature is off."""
_CLUSTER = "cluster"
_EPOCH = "epoch"


class UpgradeType(IntEnum):
    """Direction in which an update may change a level."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A requested level of a feature."""

    name: str
    level: int
    upgrade_type: int


class Features:
    """Finalized levels of the cluster. A level that was never changed is the newest.

    `newest` has the highest level of each supported feature: less than `NEWEST` for a node that presents itself as an
    older release.
    """

    def __init__(
        self, configs: ClusterConfigs, node_id: int, newest: Mapping[str, int] = NEWEST, catalog: Catalog | None = None
    ) -> None:
        """Set up. Without a catalog the cluster's level is no feature; one that is named older does not show it."""
        self._configs = configs
        self._node_id = node_id
        self._catalog = catalog
        shows_level = catalog is not None and newest == NEWEST
        self._newest = {**newest, CLUSTER_LEVEL: NEWEST_LEVEL} if shows_level else newest
        self.supported: Mapping[str, tuple[int, int]] = {
            name: (_lowest(name, highest), highest) for name, highest in self._newest.items()
        }
        """Lowest and highest level of each supported feature."""

    @property
    def epoch(self) -> int:
        """Number of the last change. Clients use the levels of the highest epoch that they have seen."""
        return int(self._configs.get(FEATURES, _CLUSTER).get(_EPOCH, "0"))

    def level(self, name: str) -> int:
        """Return the finalized level; 0 if the feature is off or unknown."""
        if name == CLUSTER_LEVEL and self._catalog is not None:
            return self._catalog.level
        newest = self._newest.get(name, 0)
        return min(newest, int(self._configs.get(FEATURES, _CLUSTER).get(name, newest)))

    def finalized(self) -> Mapping[str, int]:
        """Return the features that are on, with their levels."""
        return {name: level for name in self._newest if (level := self.level(name))}

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Apply all of the updates, or none. Raises INVALID_UPDATE_VERSION with Kafka's message."""
        changed: dict[str, str] = {}
        level = 0
        for update in updates:
            problem = self._problem(update)
            if problem:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    "The update failed for all features since the following feature had an error: "
                    f"Invalid update version {update.level} for feature {update.name}. {problem}",
                )
            if update.name == CLUSTER_LEVEL:
                level = update.level
            elif update.level != self.level(update.name):
                changed[update.name] = str(update.level)
        if level:
            await self._raise_level(level, validate_only=validate_only)
        if changed and not validate_only:
            await self._configs.alter(
                FEATURES, _CLUSTER, set_configs={**changed, _EPOCH: str(self.epoch + 1)}, unset=()
            )

    async def _raise_level(self, level: int, *, validate_only: bool) -> None:
        assert self._catalog is not None, "it is a supported feature"
        try:
            await self._catalog.raise_level(level, validate_only=validate_only)
        except CatalogUnavailable:
            raise
        except CatalogError as error:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, str(error)) from error

    def _problem(self, update: FeatureUpdate) -> str:
        newest, current = self._newest.get(update.name), self.level(update.name)
        if update.name == CLUSTER_LEVEL and self._catalog is not None:
            newest = NEWEST_LEVEL
        if update.upgrade_type not in set(UpgradeType):
            return "The controller does not support the given upgrade type."
        if update.level < 0:
            return "A feature version cannot be less than 0."
        if newest is None:
            if update.level == 0:
                return f"Feature {update.name} not found."
            return f"Local controller {self._node_id} does not support this feature."
        lowest = _lowest(update.name, newest)
        if not lowest <= update.level <= newest:
            return f"Local controller {self._node_id} only supports versions {lowest}-{newest}"
        if update.level < current and update.upgrade_type == UpgradeType.UPGRADE:
            return (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
                "unsafe downgrade."
            )
        if update.level > current and update.upgrade_type != UpgradeType.UPGRADE:
            return "Can't downgrade to a newer version."
        return ""


def _lowest(name: str, newest: int) -> int:
    """Return the lowest supported level of a feature."""
    if name == CLUSTER_LEVEL:
        return FIRST_ADDITIVE - 1
    return newest if name == METADATA_VERSION else 0
