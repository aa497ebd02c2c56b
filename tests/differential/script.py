"""The API for scripts: requests to one broker, with each answer recorded under the step's name.

Scripts give fixed names to topics and groups, begin each name with their own prefix, and never branch on an answer. Ids
for later requests are taken from the answers.
"""

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.differential.answers import CLOSED, NO_ANSWER, Normal, Symbols, Tree
from tests.differential.peer import ClosedError, Peer, Wire
from tests.support.raw_client import API_OF

WAIT_S = 30.0
MAIN = "main"
OWN_LISTS = ("groups", "transaction_states", "replica_election_results")
"""Fields that also list what other scripts have created."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request and its answer. `api_key` is None for bytes that are not a request."""

    name: str
    api_key: int | None
    version: int
    answer: Tree


class Script:
    """One broker's run of a script. `on` names a connection, which is opened at its first use and after a close."""

    def __init__(self, peer: Peer, symbols: Symbols | None = None) -> None:
        self.peer = peer
        self.steps: list[Step] = []
        self._wires: dict[str, Wire] = {}
        self._normal = Normal(symbols or Symbols(), {peer.port: "<port>", peer.sasl_port: "<port>"})

    def close(self) -> None:
        """Close all connections."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    # -- Steps: noted and compared -------------------------------------------------------------------------------

    def call(self, name: str, request: object, *versions: int, on: str = MAIN, own: str = "") -> Any:
        """Send a request in each of the versions; returns the last answer, None when the connection was closed.

        `own` is the prefix of the entries to keep, for answers that also list other scripts' groups or transactions.
        """
        answer = None
        for version in versions:
            self.send(request, version, on=on)
            answer = self.receive(name, type(request), version, on=on)
            if own:
                tree = self.steps[-1].answer
                lists = next(name for name in OWN_LISTS if name in tree)
                tree[lists] = {key: value for key, value in tree[lists].items() if key.startswith(own)}
        return answer

    def send(self, request: object, version: int, *, on: str = MAIN) -> None:
        """Send without waiting for the answer."""
        self._wire(on).send(request, version)

    def receive(self, name: str, request_type: type, version: int, *, on: str = MAIN) -> Any:
        """Record the answer to the earliest unanswered request on that connection."""
        key = API_OF[request_type].key
        try:
            answer = self._wire(on).receive(request_type, version)
        except (ClosedError, TimeoutError) as error:
            self._note(name, key, version, CLOSED if isinstance(error, ClosedError) else NO_ANSWER)
            self.drop(on)
            return None
        self._note(name, key, version, self._normal.tree(answer))
        return answer

    def raw(self, name: str, data: bytes) -> None:
        """Send bytes on a connection of their own; noted is whether they were answered, or the connection closed."""
        api_key, version = struct.unpack_from(">hh", data, 4) if len(data) >= 8 else (None, -1)
        wire = Wire(self.peer)
        try:
            wire.send_bytes(data)
            answer: Tree = {"answered": True, "error": struct.unpack_from(">h", wire.receive_bytes(), 4)[0]}
        except ClosedError:
            answer = CLOSED
        finally:
            wire.close()
        self._note(name, api_key, version, answer)

    def _note(self, name: str, api_key: int | None, version: int, answer: Tree) -> None:
        self.steps.append(Step(f"{name} v{version}" if api_key is not None else name, api_key, version, answer))

    def note(self, name: str, value: Tree) -> None:
        """Note what a script has made of answers."""
        self._note(name, None, -1, value)

    # -- Preparations: not noted ---------------------------------------------------------------------------------

    def ask(self, request: object, version: int, *, on: str = MAIN) -> Any:
        """Send a request and return its answer without noting it."""
        wire = self._wire(on)
        wire.send(request, version)
        answer = wire.receive(type(request), version)
        self._normal.tree(answer)  # the ids in it get their names
        return answer

    def ask_nothing(self, request: object, version: int, *, on: str = MAIN) -> None:
        """Send a request that is not answered."""
        self._wire(on).send(request, version)

    def until(self, request: object, version: int, done: Callable[[Any], bool], *, on: str = MAIN) -> Any:
        """Ask until the answer is as it should be, since Apache Kafka answers some changes before they are seen."""
        deadline = time.monotonic() + WAIT_S
        while not done(answer := self.ask(request, version, on=on)):
            assert time.monotonic() < deadline, f"{self.peer.name}: waited too long, last answer {answer}"
            time.sleep(0.02)
        return answer

    def topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic (`_` in names of configs stands for a dot) and wait until it is served; returns its id."""
        given = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=given)
        result = self.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7).topics[0]
        assert result.error_code == ErrorCode.NONE, f"{self.peer.name}: {result}"
        self.serving(name, partitions)
        return bytes(result.topic_id)

    def serving(self, name: str, partitions: int = 1) -> None:
        """Wait until all partitions of a topic serve."""
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
        self.until(request, 7, lambda answer: not any(found.error_code for found in answer.topics[0].partitions))

    def gone(self, *names: str) -> None:
        """Wait until topics are not known any more."""
        topics = [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        self.until(request, 9, lambda answer: all(topic.error_code for topic in answer.topics))

    def drop(self, on: str = MAIN) -> None:
        """Close a connection; the next use of its name makes a new one."""
        wire = self._wires.pop(on, None)
        if wire is not None:
            wire.close()

    def _peer_of(self, name: str) -> Peer:
        """The broker that a connection of that name goes to."""
        return replace(self.peer, port=self.peer.sasl_port) if name.startswith("sasl") else self.peer

    def _wire(self, name: str) -> Wire:
        if name not in self._wires:
            self._wires[name] = Wire(self._peer_of(name))
        return self._wires[name]


ScriptFunction = Callable[[Script], None]


def run_script(function: ScriptFunction, peer: Peer) -> Sequence[Step]:
    """Run a script against a broker and return its answers."""
    script = Script(peer)
    try:
        function(script)
    finally:
        script.close()
    return script.steps
