"""The first requests of every client: versions, brokers, topics, and topics created automatically."""

from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.differential.script import Script
from tests.support.raw_client import request_frame

LONGEST = "m" * 249


def api_versions(script: Script) -> None:
    request = ApiVersionsRequest(client_software_name="differential", client_software_version="1.0")
    script.call("api versions", request, 0, 1, 2, 3, 4, 5)
    for name, software, version in (
        ("empty name", "", "1.0"),
        ("empty version", "name", ""),
        ("leading dash", "-name", "1.0"),
        ("a space in the version", "name", "1 0"),
        ("dots and dashes", "a.b-c", "1.0-rc.1"),
    ):
        wanted = ApiVersionsRequest(client_software_name=software, client_software_version=version)
        script.call(f"software with {name}", wanted, 3, 4, 5)
    script.raw("version too new", request_frame(18, 99, b"anything"))
    script.raw("version negative", request_frame(18, -1, b"anything"))


def expected_brokers(script: Script) -> None:
    """ApiVersions with the cluster and the broker that a client expects to reach (KIP-1242)."""
    cluster = script.ask(MetadataRequest(topics=()), 9)
    name, node_id = cluster.cluster_id, cluster.brokers[0].node_id
    for what, cluster_id, broker_id in (
        ("both", name, node_id),
        ("another broker", name, node_id + 1),
        ("another cluster", "AAAAAAAAAAAAAAAAAAAAAA", node_id),
        ("another broker of another cluster", "AAAAAAAAAAAAAAAAAAAAAA", node_id + 1),
        ("a cluster only", name, -1),
        ("a broker only", None, node_id),
        ("a cluster without name", "", node_id),
        ("a cluster without name only", "", -1),
        ("a negative broker", name, -2),
        ("a negative broker only", None, -2),
        ("the largest broker", name, 2**31 - 1),
    ):
        wanted = ApiVersionsRequest(
            client_software_name="differential",
            client_software_version="1.0",
            cluster_id=cluster_id,
            node_id=broker_id,
        )
        script.call(what, wanted, 5)
    nameless = ApiVersionsRequest(client_software_version="1", cluster_id=name, node_id=node_id + 1)
    script.call("another broker, and no software", nameless, 5)
    script.call("served all the same", MetadataRequest(topics=()), 9)


def metadata(script: Script) -> None:
    script.topic("md-a", 3)
    script.topic("md-b")

    def named(*names: str, create: bool = False, cluster: bool = False, topics: bool = False) -> MetadataRequest:
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=cluster,
            include_topic_authorized_operations=topics,
        )

    script.call("a topic", named("md-a"), *range(4, 14))
    script.call("two topics", named("md-b", "md-a"), 5, 9, 13)
    script.call("the same topic twice", named("md-a", "md-a"), 4, 9, 12)
    script.call("no topics", MetadataRequest(topics=()), *range(1, 14))
    script.call("an unknown topic", named("md-missing"), 4, 9, 12)
    script.call("one known, one not", named("md-missing", "md-a"), 4, 9, 12)
    script.call("with operations", named("md-a", cluster=True, topics=True), 8, 10)
    script.call("with operations on topics", named("md-a", topics=True), 12, 13)
    script.call("in old versions", MetadataRequest(topics=[MetadataRequestTopic(name="md-a")]), 0, 1, 2, 3)
    for name, text in (
        ("a slash", "md/x"),
        ("a space", "md x"),
        ("two dots", ".."),
        ("nothing", ""),
        ("250", "m" * 250),
    ):
        script.call(f"unknown name with {name}", named(text), 4, 9, 12)
        script.call(f"created name with {name}", named(text, create=True), 4, 12)
    topic_id = script.ask(named("md-a"), 12).topics[0].topic_id
    script.call("by id", MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)]), 12, 13)
    script.call("unknown id", MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"\1" * 16, name=None)]), 12, 13)
    script.call("zero id, no name", MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 12)
    script.call(
        "id in version 10", MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name="md-a")]), 10, 11
    )


def auto_create(script: Script) -> None:
    for version in (0, 1, 3, 4, 9, 12):
        name = f"ac-{version}"
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        script.ask(request, version)  # Kafka answers UNKNOWN_TOPIC_OR_PARTITION at first, and the request is repeated
        script.serving(name)
        script.call("created by asking", request, version)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="ac-first")], allow_auto_topic_creation=True)
    script.call("first asked for", request, 9)
    script.serving("ac-first")
    long = MetadataRequest(topics=[MetadataRequestTopic(name=LONGEST)], allow_auto_topic_creation=True)
    script.ask(long, 9)
    script.serving(LONGEST)
    script.call("longest name", long, 9)
    script.topic("ac_collides")
    for what, name in (("that collides", "ac.collides"), ("of Kafka's own log", "__cluster_metadata")):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        script.ask(request, 9)
        script.call(f"a name {what}", request, 9)


def describe_cluster(script: Script) -> None:
    script.call("cluster", DescribeClusterRequest(), 0, 1, 2)
    script.call("with operations", DescribeClusterRequest(include_cluster_authorized_operations=True), 0, 1, 2)
    script.call("controllers", DescribeClusterRequest(endpoint_type=2), 1, 2)
    script.call("endpoints of type 7", DescribeClusterRequest(endpoint_type=7), 1, 2)
    script.call("with fenced brokers", DescribeClusterRequest(include_fenced_brokers=True), 2)


def describe_topic_partitions(script: Script) -> None:
    script.topic("dtp-a", 3)
    script.topic("dtp-b", 2)

    def request(
        *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )

    script.call("two topics", request("dtp-b", "dtp-a"), 0)
    script.call("the same topic twice", request("dtp-a", "dtp-a"), 0)
    script.call("an unknown topic", request("dtp-x", "dtp-a"), 0)
    script.call("an invalid name", request("dtp/x"), 0)
    for limit in (0, -1, 1, 2, 3, 4, 5, 6):
        script.call(f"limit {limit}", request("dtp-a", "dtp-b", limit=limit), 0)
    script.call("from a cursor", request("dtp-a", "dtp-b", cursor=("dtp-a", 1)), 0)
    script.call("from a cursor in the second", request("dtp-a", "dtp-b", cursor=("dtp-b", 1)), 0)
    script.call("from a cursor between", request("dtp-a", "dtp-b", cursor=("dtp-aa", 1)), 0)
    script.call("from a cursor past the partitions", request("dtp-a", "dtp-b", cursor=("dtp-a", 7)), 0)
    script.call("from a negative cursor", request("dtp-a", "dtp-b", cursor=("dtp-a", -1)), 0)
    script.call("from a cursor past all", request("dtp-a", "dtp-b", cursor=("dtp-c", 0)), 0)


SCRIPTS = (api_versions, expected_brokers, metadata, auto_create, describe_cluster, describe_topic_partitions)
