"""Several nodes of one cluster, each in a process of its own.

with node_processes(tmp_path, 3, postgres.new_database()) as nodes:
    client = AIOKafkaProducer(bootstrap_servers=bootstrap_of(nodes))
    nodes[2].kill9()
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from anabranch.client.connection import Connection
from anabranch.client.errors import ClientError
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.node import START_TIMEOUT_S, NodeProcess
from tests.support.waiting import wait_until


@contextmanager
def node_processes(
    folder: Path,
    count: int,
    catalog_url: str,
    own: Callable[[int], Mapping[str, object]] = lambda _: {},
    /,
    **wanted: object,
) -> Iterator[Sequence[NodeProcess]]:
    """Run nodes on one catalog and one object store, each of which knows that all live.

    `node_id` is the first id. `own` returns further settings of the node with an id.
    """
    first_id = int(str(wanted.pop("node_id", 1)))
    shared: dict[str, object] = {
        "catalog_url": catalog_url,
        "objects_path": folder / "objects",
        **wanted,
    }
    nodes = [
        NodeProcess(folder / str(node_id), node_id=node_id, **shared, **own(node_id))
        for node_id in range(first_id, first_id + count)
    ]
    with ExitStack() as stack:
        for node in nodes:
            stack.push(node)  # kills it, unless it has ended
            node.data_dir.parent.mkdir(parents=True, exist_ok=True)
            node.spawn()
        for node in nodes:
            node.wait_ready(START_TIMEOUT_S * count)  # they start side by side
        for node in nodes:
            wait_for_brokers(node.host, node.port, count)
        yield nodes


def terminate_all(nodes: Sequence[NodeProcess]) -> None:
    """Stop those that run, one after the other, as an operator would. Each must end without an error."""
    for node in nodes:
        if node.running:
            assert node.terminate() == 0


def bootstrap_of(nodes: Sequence[NodeProcess]) -> str:
    """Addresses of all nodes for clients."""
    return ",".join(node.bootstrap for node in nodes)


def wait_for_brokers(host: str, port: int, count: int) -> None:
    """Wait until a broker, of whatever kind, names `count` brokers."""

    def named() -> int:
        try:
            with Connection(host, port) as connection:
                return len(connection.call(MetadataRequest(topics=())).brokers)
        except ClientError:
            return 0

    wait_until(lambda: named() == count, f"{host}:{port} names {count} brokers")


def wait_for_topic(nodes: Sequence[NodeProcess], name: str, partitions: int) -> None:
    """Wait until every node shows that many partitions of a topic, each with a leader."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

    def shown(node: NodeProcess) -> int:
        with Connection(node.host, node.port) as connection:
            (topic,) = connection.call(request).topics
        return sum(partition.leader_id > 0 for partition in topic.partitions)

    wait_until(
        lambda: all(shown(node) == partitions for node in nodes), f"all nodes show {partitions} partitions of {name}"
    )
