"""The client libraries whose own integration tests run against a node, and what each suite needs to find it.

A suite comes from the client's source distribution, or from its repository where the distribution has no tests. Parts
that would start a broker of the suite's own are replaced by the files in `overlay`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PACKAGE = "no_package_marker.py"
USER, PASSWORD = "alice", "the-password-of-alice"


@dataclass(frozen=True, slots=True)
class Suite:
    """A client's integration tests."""

    name: str
    requirement: str
    """The client as its users install it: its tests run against this, not against the source they came with."""
    needs: Sequence[str]
    """Further packages that its tests import."""
    folders: Sequence[str]
    """Folders copied from the source, without the client's own code."""
    paths: Sequence[str]
    """The integration tests."""
    environ: Mapping[str, str]
    """Variables with the broker's address; `{bootstrap}` is `host:port`, `{registry}` the URL of a node's schema
    registry, `{home}` the folder of the suite. With `is_secure` there are `{listeners}` and `{authority}`, no URL."""
    repository: str | None = None
    """URL of the source, if it is not in the package registry."""
    tag: str | None = None
    overlay: Mapping[str, str] = field(default_factory=dict)
    """Files to lay over the source: path there, and name of the file in `overlay/` here."""
    deselected: Sequence[str] = ()
    """Tests that do not test the broker, or need another one; `README.md` gives the reasons."""
    node_settings: Mapping[str, object] = field(default_factory=dict)
    kafka_properties: Mapping[str, str] = field(default_factory=dict)
    """Configuration of the suite's own broker: `node_settings` for a node, `kafka_properties` for Apache Kafka."""
    options: Sequence[str] = ()
    """Further options of pytest."""
    needs_registry: bool = False
    """Its tests use a schema registry, which Apache Kafka does not have."""
    is_secure: bool = False
    """The node has listeners with SASL and TLS, and the user USER. Only one node is possible, and no Apache Kafka."""


SUITES = (
    Suite(
        name="kafka-python",
        requirement="kafka-python==3.0.12",
        needs=("py", "pytest-mock", "pytest-timeout", "cramjam", "lz4", "crc32c"),
        folders=("test",),
        paths=("test/integration",),
        environ={"KAFKA_URI": "kafka://{bootstrap}", "KAFKA_VERSION": "4.3", "KAFKA_ROOT": "{home}"},
        overlay={"test/__init__.py": PACKAGE, "test/service.py": "kafka_python_service.py"},
        deselected=("test/integration/test_ssl_integration.py", "test/integration/test_sasl_integration.py"),
        node_settings={"node_id": 0, "topic_num_partitions": 4, "group_session_timeout_min_ms": 1000},
        kafka_properties={"node.id": "0", "num.partitions": "4", "group.min.session.timeout.ms": "1000"},
    ),
    Suite(
        name="kafka-python-secure",
        requirement="kafka-python==3.0.12",
        needs=("py", "pytest-mock", "pytest-timeout", "cramjam", "lz4", "crc32c"),
        folders=("test",),
        paths=("test/integration/test_ssl_integration.py", "test/integration/test_sasl_integration.py"),
        environ={
            "SUITE_LISTENERS": "{listeners}",
            "SUITE_AUTHORITY": "{authority}",
            "SUITE_USER": USER,
            "SUITE_PASSWORD": PASSWORD,
            "KAFKA_VERSION": "4.3",
            "KAFKA_ROOT": "{home}",
        },
        overlay={
            "test/__init__.py": PACKAGE,
            "test/service.py": "kafka_python_service.py",
            "test/conftest.py": "kafka_python_secure_conftest.py",
        },
        node_settings={"node_id": 0, "topic_num_partitions": 4},
        is_secure=True,
    ),
    Suite(
        name="aiokafka",
        requirement="aiokafka==0.14.0",
        needs=("pytest-asyncio", "pytest-mock", "pytest-timeout", "cramjam", "crc32c"),
        folders=("tests",),
        paths=(
            "tests/test_admin.py",
            "tests/test_client.py",
            "tests/test_conn.py",
            "tests/test_consumer.py",
            "tests/test_coordinator.py",
            "tests/test_fetcher.py",
            "tests/test_pep492.py",
            "tests/test_producer.py",
            "tests/test_sender.py",
            "tests/test_transactional_consumer.py",
            "tests/test_transactional_producer.py",
        ),
        environ={"SUITE_BROKER": "{bootstrap}"},
        repository="https://github.com/aio-libs/aiokafka",
        tag="v0.14.0",
        overlay={"tests/conftest.py": "aiokafka_conftest.py"},
        node_settings={"node_id": 0, "topic_num_partitions": 2},
        kafka_properties={"node.id": "0", "num.partitions": "2"},
    ),
    Suite(
        name="confluent-kafka",
        requirement="confluent-kafka[avro,json,protobuf,rules,schemaregistry]==2.15.0",
        needs=("pytest-asyncio", "pytest-timeout", "urllib3<3", "requests", "async-timeout"),
        folders=("tests",),
        paths=("tests/integration/admin", "tests/integration/consumer", "tests/integration/producer"),
        environ={"BROKERS": "{bootstrap}", "TEST_CONSUMER_GROUP_PROTOCOL": "consumer"},
        repository="https://github.com/confluentinc/confluent-kafka-python",
        tag="v2.15.0",
        overlay={
            "trivup/__init__.py": PACKAGE,
            "trivup/clusters/__init__.py": PACKAGE,
            "trivup/clusters/KafkaCluster.py": "trivup.py",
        },
    ),
    Suite(
        name="confluent-kafka-registry",
        requirement="confluent-kafka[avro,json,protobuf,rules,schemaregistry]==2.15.0",
        needs=("pytest-asyncio", "pytest-timeout", "urllib3<3", "requests", "async-timeout"),
        folders=("tests",),
        paths=("tests/integration/schema_registry", "tests/integration/serialization"),
        environ={"SUITE_BROKER": "{bootstrap}", "SUITE_REGISTRY": "{registry}"},
        repository="https://github.com/confluentinc/confluent-kafka-python",
        tag="v2.15.0",
        overlay={
            "trivup/__init__.py": PACKAGE,
            "trivup/clusters/__init__.py": PACKAGE,
            "trivup/clusters/KafkaCluster.py": "trivup.py",
        },
        options=("-o", "asyncio_mode=auto"),
        needs_registry=True,
    ),
)
