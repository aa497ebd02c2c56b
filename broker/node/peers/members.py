"""The living nodes of the cluster as this node sees them, and those that died recently.

librdkafka forgets a broker that Metadata does not list, and may then hold a request for a returning coordinator
forever. So a node that dies is listed for some time, as by Apache Kafka, but leads nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from anabranch.s3stream.catalog.values import NodeInfo, NodeListener


@dataclass(frozen=True, slots=True)
class Member:
    """A living node."""

    node_id: int
    epoch: int
    listeners: tuple[NodeListener, ...]
    """Addresses that clients connect to."""
    rack: str = ""
    internal_host: str = ""
    """Address that other nodes connect to; empty: it takes no such connections."""
    internal_port: int = 0

    def at(self, listener: str) -> NodeListener | None:
        """Return the node's address for clients of a listener; None if it has no listener of that name."""
        return next((each for each in self.listeners if each.name == listener), None)


def member_of(node: NodeInfo) -> Member:
    """Return a registered node as a member."""
    return Member(node.node_id, node.epoch, node.listeners, node.rack, node.internal_host, node.internal_port)


def addresses(members: Iterable[Member], listener: str) -> Iterator[tuple[Member, NodeListener]]:
    """Yield the members that have a listener of that name, with its address. The others are left out, as in Kafka."""
    for member in members:
        if (address := member.at(listener)) is not None:
            yield member, address


class Members:
    """The living nodes, this one always among them. Its one writer replaces them all with `update`."""

    def __init__(self, own: Member) -> None:
        self._own = own
        self._members: Mapping[int, Member] = MappingProxyType({own.node_id: own})
        self._draining: frozenset[int] = frozenset()
        self._stopping: frozenset[int] = frozenset()
        self._listed = self._members
        self._vouched: Mapping[int, Member] = MappingProxyType({})
        self.version = 0
        """Grows with every change."""
        self._watchers: list[Callable[[], None]] = []

    @property
    def own(self) -> Member:
        """This node."""
        return self._own

    @property
    def controller_id(self) -> int:
        """The controller as announced to clients: the node with the lowest id. Any node does its work."""
        return min(self._members)

    def living(self) -> Sequence[Member]:
        """Return the living nodes by id."""
        return [self._members[node_id] for node_id in sorted(self._members)]

    def listed(self) -> Sequence[Member]:
        """Return the nodes announced to clients, by id: the living ones, and those that died recently."""
        return [self._listed[node_id] for node_id in sorted(self._listed)]

    def is_listed(self, node_id: int) -> bool:
        """Return whether the node is announced to clients."""
        return node_id in self._listed

    def get(self, node_id: int) -> Member | None:
        """Return a living node."""
        return self._members.get(node_id)

    def get_leader(self, node_id: int) -> Member | None:
        """Return a node that may be named as a leader: one that lives, or is vouched for."""
        return self._members.get(node_id) or self._vouched.get(node_id)

    @property
    def draining(self) -> frozenset[int]:
        """Ids of nodes that are being drained, or stop together with this one: they live, and get no partitions."""
        return self._draining | self._stopping

    def update(
        self,
        members: Iterable[Member],
        *,
        draining: Iterable[int] = (),
        died_lately: Iterable[Member] = (),
        vouched: Iterable[Member] = (),
    ) -> None:
        """Replace all nodes but this one. `vouched` are cut off from the catalog only: they answer other nodes."""
        found = {member.node_id: member for member in members} | {self._own.node_id: self._own}
        self._vouched = MappingProxyType({member.node_id: member for member in vouched})
        lately = {member.node_id: member for member in died_lately}
        self._listed = MappingProxyType(lately | dict(self._vouched) | found)
        drained = frozenset(draining)
        if found != dict(self._members) or drained != self._draining:
            self._members = MappingProxyType(found)
            self._draining = drained
            self._note_change()

    def stop_with(self, node_ids: frozenset[int]) -> None:
        """Note that other nodes stop together with this one, so that it leaves them nothing."""
        self._stopping = node_ids
        self._note_change()

    def _note_change(self) -> None:
        self.version += 1
        for changed in self._watchers:
            changed()

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change. It must not raise."""
        self._watchers.append(changed)
