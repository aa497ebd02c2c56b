"""This node's copies of what the catalog has for the whole cluster."""

from dataclasses import dataclass

from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.node.peers.secret import ClusterSecret
from anabranch.s3stream.catalog.values import CatalogChanges


@dataclass(frozen=True, slots=True)
class Copies:
    """Topics, configs, ACLs, delegation tokens and the secret of the cluster. None: not needed here."""

    topics: TopicManager
    groups: GroupCoordinator
    """Groups of this node, whose offsets of deleted topics are deleted."""
    configs: ClusterConfigs
    acls: ClusterAcls | None
    tokens: DelegationTokens | None
    secret: ClusterSecret

    async def apply_changes(self, changes: CatalogChanges) -> None:
        """Apply what other nodes have changed. Raises StorageError; it may be called again with the same changes."""
        await self.topics.apply_changes(changes, self.groups.forget_topics)
        if changes.configs_changed:
            await self.configs.load()
        if changes.acls_changed and self.acls is not None:
            await self.acls.load()
        if changes.tokens_changed and self.tokens is not None:
            await self.tokens.load()
        if changes.secret_changed:
            await self.secret.load()

    async def resolve_topics(self) -> None:
        """Read outcomes of this node's changes of topics whose answers were lost. Raises StorageError."""
        await self.topics.resolve_outcomes(self.groups.forget_topics)

    async def resolve_others(self) -> None:
        """Read outcomes of this node's other changes whose answers were lost. Raises CatalogError."""
        await self.configs.resolve_outcomes()
        if self.acls is not None:
            await self.acls.resolve_outcomes()
        if self.tokens is not None:
            await self.tokens.resolve_outcomes()
