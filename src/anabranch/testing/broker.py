"""A broker that lives as long as a test needs it: one node, or a cluster."""

import secrets
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from anabranch.broker.node.settings.known import KAFKA_RELEASES
from anabranch.broker.operator.dev.folder import MemoryFolder
from anabranch.extras import MissingExtra, install_command
from anabranch.spelling import near_text
from anabranch.testing.process import ORDER_TIMEOUT_S, START_TIMEOUT_S, BrokerError, BrokerProcess
from anabranch.testing.security import Security
from anabranch.testing.snapshots import Snapshot, elsewhere, put_back, take
from anabranch.testing.table import Table

POLL_S: Final = 0.05
ASK_AGAIN_S: Final = 1.0
SALT_BYTES: Final = 16
AHEAD_MAX_MS: Final = 100 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic, as it is stored."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Broker:
    """A broker on free ports of 127.0.0.1, each node in a process of its own. Its data is in memory until `close`.

    It is a whole Anabranch: any Kafka client can use it. `settings` are those of a node, by name
    (`{"topic.num_partitions": 3}`). With `users`, passwords by name, clients authenticate themselves by SCRAM or PLAIN;
    with `tls`, they connect by TLS. `nodes` makes it a cluster of that many, which methods name 1, 2, ... With
    `kafka_version` (`"3.6"`) it serves the APIs, versions and features of that release of Apache Kafka only. It starts
    when it is entered as a context manager, or by `start`.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        nodes: int = 1,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        kafka_version: str | None = None,
    ) -> None:
        if nodes < 1:
            raise BrokerError(f"nodes: expected at least 1, found {nodes}")
        self._settings = dict(settings or {})
        if kafka_version is not None:
            if kafka_version not in KAFKA_RELEASES:
                known = ", ".join(map(repr, KAFKA_RELEASES))
                raise BrokerError(f"kafka_version: expected one of {known}, found {kafka_version!r}")
            self._settings["compatibility.kafka"] = kafka_version
        self._count = nodes
        self._security = Security(users or {}, tls=tls)
        self._folder: MemoryFolder | None = None
        self._nodes: list[BrokerProcess] = []
        self._ahead_ms = 0
        """Time by which the clocks of all nodes are ahead of the machine's."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients, of each node; it stays the same after `kill` and `start`."""
        self._check_running()
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """Return what a client needs to connect, by the names that librdkafka has for it.

        They are the addresses, and with TLS or users the protocol, the file of the certificate (`ssl.ca.location`), and
        name and password of a user, by default the first.
        """
        servers = self.bootstrap_servers
        if user is not None and user not in self._security.users:
            raise BrokerError(f"the broker has no user {user!r}{near_text(user, self._security.users)}")
        assert self._folder is not None, "it runs"
        return {"bootstrap.servers": servers, **self._security.client_settings(self._folder.path, user)}

    @property
    def admin_url(self) -> str:
        """URL of the admin port, with /api/v1/status and /metrics. Raises BrokerError without the extra `console`."""
        node = self._first()
        if not node.admin_port:
            raise BrokerError(f"the broker has no admin port: {install_command('console')}")
        return f"http://127.0.0.1:{node.admin_port}"

    @property
    def schema_registry_url(self) -> str:
        """URL of the schema registry, for clients of Confluent's."""
        return f"{self.admin_url}/schema-registry"

    @property
    def is_running(self) -> bool:
        """True while one of its processes runs, paused or not."""
        return any(node.is_running for node in self._nodes)

    @property
    def is_healthy(self) -> bool:
        """True while all its nodes run without a fault."""
        return bool(self._nodes) and all(
            node.is_running and not node.is_paused and not node.has_faults for node in self._nodes
        )

    @property
    def pid(self) -> int:
        """Id of the process of the first node."""
        assert self._nodes, "the broker was never started"
        return self._nodes[0].pid

    @property
    def log(self) -> str:
        """Warnings and errors of the broker, at most the last 64 KiB of each node."""
        return "".join(node.log for node in self._nodes)

    def start(self) -> None:
        """Start it, or the nodes of it that were killed, with all records that it had acknowledged.

        Raises BrokerError.
        """
        is_new = self._folder is None
        if self._folder is None:
            self._folder = MemoryFolder()
            path = self._folder.path
            folders = [path] if self._count == 1 else [path / str(number) for number in range(1, self._count + 1)]
            self._nodes = [BrokerProcess(each) for each in folders]
        starting = [node for node in self._nodes if not node.is_running]
        if not starting:
            raise BrokerError("the broker runs already")
        try:
            for node in starting:
                node.spawn(self._settings_of(node), self._ahead_ms)
            for node in starting:
                node.wait_ready()
            self._wait_acquainted()
            self._set_passwords(starting)
        except (BrokerError, MissingExtra) as error:
            for node in starting:
                node.kill()
            if is_new:
                self.close()
            if isinstance(error, MissingExtra):
                raise BrokerError(str(error)) from None
            raise

    def _settings_of(self, node: BrokerProcess) -> Mapping[str, object]:
        assert self._folder is not None, "it is starting"
        path = self._folder.path
        shared: dict[str, object] = {}
        if self._count > 1:
            shared = {
                "node.node_id": self._nodes.index(node) + 1,
                "catalog.url": f"sqlite:///{path / 'catalog.db'}",
                "objects.path": path / "objects",
            }
        return {**shared, **self._security.settings(path, node.port), **self._settings}

    def _wait_acquainted(self) -> None:
        """Wait until each node knows that the others live."""
        serving = list(self._serving())
        until_s = time.perf_counter() + START_TIMEOUT_S
        while any(node.order(count_nodes=True)["nodes"] < len(serving) for node in serving):
            if time.perf_counter() > until_s:
                raise BrokerError(f"the nodes of the broker do not find each other within {START_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def _set_passwords(self, nodes: Sequence[BrokerProcess]) -> None:
        for user, password in self._security.users.items():
            for node in nodes:  # each decides by its own copy of the credentials
                node.order(set_password=password, user=user, salt=secrets.token_hex(SALT_BYTES))

    def close(self) -> None:
        """End it, and remove its data. A second call does nothing."""
        self.kill()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        self._nodes = []

    def kill(self, node: int | None = None) -> None:
        """End all processes, or that of a node, as a crash would (SIGKILL). `start` brings them back.

        No error if they do not run.
        """
        for each in self._chosen(node):
            each.kill()

    def pause(self, node: int | None = None) -> None:
        """Suspend all processes, or that of a node (SIGSTOP): they answer nothing until `resume`."""
        self._check_running()
        for each in self._chosen(node):
            each.pause()

    def resume(self, node: int | None = None) -> None:
        """Let them go on after `pause`."""
        self._check_running()
        for each in self._chosen(node):
            each.resume()

    def slow_store(self, ms: float) -> None:
        """Let each call to the object store take this much longer; 0: no more. Uploads and reads of old data wait."""
        self._fault(slow_store_ms=ms)

    def fail_next(self, api: str, error: str | int, *, times: int = 1, applied: bool = False) -> None:
        """Answer the next requests of an API with an error, both by their names in Kafka's protocol.

            broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")

        Such a request changes nothing; with `applied` it is carried out, as when an answer is lost. For this and the
        next three: Produce requests with acks=0 have no answer, and do not count.
        """
        self._fault(fail=api, code=error, times=times, applied=applied)

    def drop_next(self, api: str, *, times: int = 1, applied: bool = False) -> None:
        """Close the connection at the next requests of an API; with `applied`, after they were carried out."""
        self._fault(drop=api, times=times, applied=applied)

    def delay_next(self, api: str, ms: float, *, times: int = 1) -> None:
        """Let the next requests of an API, and those behind them on their connections, wait before they are handled."""
        self._fault(delay=api, ms=ms, times=times)

    def throttle_next(self, api: str, ms: int, *, times: int = 1) -> None:
        """Throttle the clients that send the next requests of an API, as a quota would."""
        self._fault(throttle=api, ms=ms, times=times)

    def cut(self, node: int | None = None) -> None:
        """Cut clients off until `heal`, from all nodes or one: close all connections, new ones at their first request.

        Nodes still reach each other.
        """
        self._check_running()
        for each in self._chosen(node):
            each.has_faults = True
            each.order(cut=True)

    def _fault(self, **order: object) -> None:
        """Give an order about faults to each node that answers."""
        self._first()
        for node in self._serving():
            node.has_faults = True
            node.order(**order)

    def heal(self) -> None:
        """End all faults: go on after `pause`, start after `kill`, fail and delay nothing more."""
        for node in self._nodes:
            if node.is_running and node.is_paused:
                node.resume()
        if not self._nodes or not all(node.is_running for node in self._nodes):
            self.start()
        for node in self._nodes:
            if node.has_faults:
                node.order(clear=True)
                node.has_faults = False

    def advance(self, by: timedelta | float) -> None:
        """Move the clocks of all nodes forward, by a time or a number of seconds, and let happen what is due then.

            broker.advance(timedelta(days=8))

        When it returns, members of groups whose sessions have ended are out, transactions that have timed out are
        aborted, and records, committed offsets and ids of producers that have outlived their retention are gone. The
        clocks of clients stay, as does what waits for another process: connections, requests, leases of nodes. Nodes
        that are started later have the same time; it never goes back. Raises BrokerError.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        ahead_ms = self._ahead_ms + seconds * 1000
        if not (seconds >= 0 and ahead_ms <= AHEAD_MAX_MS):  # also if it is not a number
            raise BrokerError(f"advance: expected a time that is not negative, and 100 years at most, found {by!r}")
        self._first()
        if any(node.is_running and node.is_paused for node in self._nodes):
            raise BrokerError("advance: a node is paused, and would miss it: call resume first")
        self._ahead_ms = round(ahead_ms)
        for node in self._serving():
            node.order(ahead_ms=self._ahead_ms)

    def freeze(self) -> Snapshot:
        """Return a snapshot of the broker, to which `restore` brings it back: all that is stored, and the time.

        Clients notice nothing. Raises BrokerError.
        """
        if names := ", ".join(elsewhere(self._settings)):
            raise BrokerError(f"freeze: the data is not in the broker's folder, because of the setting {names}")
        self._first()
        running = [node for node in self._nodes if node.is_running and not node.is_paused]
        assert self._folder is not None, "it runs"
        try:
            for node in running:
                node.pause()
            return take(self._folder.path, self._ahead_ms)
        except OSError as error:
            raise BrokerError(f"freeze: {error}") from None
        finally:
            for node in running:
                node.resume()

    def restore(self, snapshot: Snapshot) -> None:
        """Bring the broker back to what it was at a `freeze`: topics, records, groups, users, configs, and the time.

        Its faults end. Addresses stay the same; connections of clients are closed, and what they do meanwhile waits.
        Consumers join their groups again, and continue at what the groups have committed. Producers that are idempotent
        or transactional fail if the broker does not know their last records: make new ones. Raises BrokerError.
        """
        if self._folder is None or snapshot.path.parent.parent != self._folder.path:
            raise BrokerError("restore: the snapshot is of another broker, or of before its end")
        self.heal()
        try:
            for node in self._nodes:
                node.send(stop=True)
            ids_end = max(node.answer()["producer_ids_end"] for node in self._nodes)
            put_back(snapshot, self._folder.path)
            self._ahead_ms = snapshot.ahead_ms
            for node in self._nodes:
                node.send(start=True, ahead_ms=self._ahead_ms, producer_ids_end=ids_end)
            for node in self._nodes:
                node.wait_ready()
            self._wait_acquainted()
        except (BrokerError, OSError) as error:
            self.close()  # half of its data may be that of the snapshot
            raise BrokerError(f"restore: {error}; the broker is closed") from None

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None) -> None:
        """Create a topic, which all nodes know then. Raises BrokerError."""
        texts = {key: str(value) for key, value in (configs or {}).items()}
        self._first().order(create_topic=name, partitions=partitions, configs=texts)
        if self._count > 1:
            self._leaders(name, committed=False)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises BrokerError."""
        self._first().order(delete_topic=name)

    def records(self, topic: str, *, partition: int | None = None, committed: bool = False) -> list[Record]:
        """Return all records of a topic, or of one partition, ordered by partition and offset. Raises BrokerError.

        They are those that there are when it is called. With `committed`, records of aborted and open transactions are
        left out, as for a consumer with `isolation.level=read_committed`. No client and no fault has a part in it.
        """
        leaders = self._leaders(topic, committed=committed)
        if partition is not None and not 0 <= partition < len(leaders):
            raise BrokerError(f"topic {topic!r} has {len(leaders)} partitions, and no partition {partition}")
        found: list[Record] = []
        for index in range(len(leaders)) if partition is None else [partition]:
            leader, offset, end = leaders[index]
            while offset < end:
                answer = leader.order(read=topic, partition=index, offset=offset, committed=committed)
                found += (_record(index, row) for row in answer["records"] if row[0] < end)
                offset = answer["next"]
        return found

    def table(self, topic: str, *, timeout_s: float = ORDER_TIMEOUT_S) -> Table:
        """Return the table of a topic (`table.enable=true`) with all records that are committed when it is called.

            broker.create_topic("orders", configs={"table.enable": "true", "table.value": "json"})
            broker.table("orders").to_pylist()

        They are uploaded and committed at once, whatever the topic's interval. Those of a transaction are committed
        shortly after its end, as for consumers (`records(topic, committed=True)`). Raises BrokerError, also after
        `timeout_s`, and with the reason if the table waits for something.
        """
        ends = {
            str(index): end for index, (_, start, end) in enumerate(self._leaders(topic, committed=True)) if end > start
        }
        until_s = time.perf_counter() + timeout_s
        asked_s = 0.0
        while True:
            asks = time.perf_counter() > asked_s + ASK_AGAIN_S
            found = [answer["table"] for node in self._serving() if (answer := node.order(table=topic, hurry=asks))]
            known = next((each for each in found if each is not None), None)
            # It has no metadata before its first commit.
            if (
                known
                and known["metadata_location"]
                and all(known["ends"].get(at, 0) >= end for at, end in ends.items())
            ):
                return Table(known["metadata_location"])
            if asks:
                if asked_s and known is not None and known["last_error"]:
                    raise BrokerError(f"table {topic!r} waits: {known['last_error']}")
                asked_s = time.perf_counter()
            if time.perf_counter() > until_s:
                raise BrokerError(f"table {topic!r} still lacks records after {timeout_s:g} s")
            time.sleep(POLL_S)

    def wait_for_group(
        self, group: str, *, members: int = 1, caught_up: bool = False, timeout_s: float = ORDER_TIMEOUT_S
    ) -> None:
        """Wait until a group is stable with at least that many members, so that its partitions are assigned.

        With `caught_up`, wait also until it has committed the ends of all partitions with records that it is assigned
        or has committed before: have your own writes acknowledged first. Raises BrokerError, which says how the group
        was, after `timeout_s`.
        """
        until_s = time.perf_counter() + timeout_s
        while True:
            found = self._group(group)
            if _is_settled(found, members) and (_is_caught_up(found) or not caught_up):
                return
            if time.perf_counter() > until_s:
                raise BrokerError(f"group {group!r} after {timeout_s:g} s: {_told(found)}")
            time.sleep(POLL_S)

    def _group(self, group: str) -> Mapping[str, Any] | None:
        """Return what its coordinator knows of a group, with the bounds of its partitions; None if there is none."""
        for node in self._serving():
            found = node.order(describe_group=group)["group"]
            if found is not None:
                break
        else:
            return None
        bounds = {
            (topic, index): place[1:]
            for topic in {topic for topic, *_ in found["offsets"]}
            for index, place in enumerate(self._leaders(topic, committed=False))
        }
        offsets = [[*row, *bounds[row[0], row[1]]] for row in found["offsets"] if (row[0], row[1]) in bounds]
        return {**found, "offsets": offsets}

    def _leaders(self, topic: str, *, committed: bool) -> Sequence[tuple[BrokerProcess, int, int]]:
        """Return leader, start and end of each partition, once all are led by nodes that run. Raises BrokerError."""
        self._first()
        until_s = time.perf_counter() + ORDER_TIMEOUT_S
        while True:
            found = [(node, node.order(bounds=topic, committed=committed)) for node in self._serving()]
            answers = [(node, answer["bounds"]) for node, answer in found]
            if all(bounds is not None for _, bounds in answers):
                count = max(len(bounds) for _, bounds in answers)
                led = {
                    index: (node, *place)
                    for node, bounds in answers
                    for index, place in enumerate(bounds)
                    if place is not None
                }
                if len(led) == count:
                    return [led[index] for index in range(count)]
            elif self._count == 1 or all(bounds is None for _, bounds in answers):
                raise BrokerError(f"there is no topic {topic!r}{found[0][1]['near']}")
            if time.perf_counter() > until_s:
                raise BrokerError(f"topic {topic!r}: not all partitions have a leader after {ORDER_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def _serving(self) -> Iterator[BrokerProcess]:
        return (node for node in self._nodes if node.is_running and not node.is_paused)

    def _first(self) -> BrokerProcess:
        """Return the first node that answers. Raises BrokerError."""
        self._check_running()
        found = next(self._serving(), None)
        if found is None:
            raise BrokerError("the broker is paused")
        return found

    def _chosen(self, node: int | None) -> Sequence[BrokerProcess]:
        """Return the node of that number; None: all."""
        if node is None:
            return self._nodes
        if not 1 <= node <= self._count:
            raise BrokerError(f"the broker has {self._count} nodes, and no node {node}")
        return self._nodes[node - 1 : node]

    def _check_running(self) -> None:
        if not self.is_running:
            raise BrokerError(f"the broker does not run{self._nodes[0].with_log() if self._nodes else ''}")


def _record(partition: int, row: Sequence[Any]) -> Record:
    """Return the record of a row (`broker.operator.dev.reading.row`)."""
    offset, timestamp_ms, key, value, headers = row
    pairs = tuple((name, _bytes(text)) for name, text in headers)
    return Record(partition, offset, timestamp_ms, _bytes(key), _bytes(value), pairs)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _is_settled(group: Mapping[str, Any] | None, members: int) -> bool:
    return group is not None and group["state"] == "Stable" and group["members"] >= members


def _is_caught_up(group: Mapping[str, Any] | None) -> bool:
    """Return whether nothing is left to consume of the group's partitions, of which there must be some."""
    offsets = [] if group is None else group["offsets"]
    return bool(offsets) and all(end == (start if at is None else at) for _, _, at, start, end in offsets)


def _told(group: Mapping[str, Any] | None) -> str:
    if group is None:
        return "it does not exist"
    offsets = [f"{topic}-{index} at {at} of {end}" for topic, index, at, _, end in group["offsets"]]
    return f"{group['state']}, {group['members']} members, {', '.join(offsets) or 'no partitions'}"
