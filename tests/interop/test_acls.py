"""Kafka's own tools manage the ACLs of a node, and clients that are denied see the exceptions that they know."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.interop.test_java import TIMEOUT_S
from tests.support.certificates import Authority, Issued
from tests.support.kafka_tools import CONSUMER, PRODUCER, TOPICS, run_tool
from tests.support.node import NodeProcess

pytestmark = pytest.mark.interop

ACLS = "org.apache.kafka.tools.AclCommand"


class SecureNode:
    """A node process with an authorizer, and a listener that requires client certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        certificate = self.authority.issue("node")
        self.issued = {name: self.authority.issue(name) for name in ("admin", "alice", "bob")}
        self.process = NodeProcess(
            folder,
            listeners="SECURE://127.0.0.1:0",
            security_protocol_map="SECURE:SSL",
            ssl_certificate_file=certificate.both,
            ssl_ca_file=self.authority.file,
            ssl_client_auth="required",
            ssl_principal_mapping_rules="RULE:^CN=([a-z]+)$/$1/,DEFAULT",
            authorizer_enabled=True,
            authorizer_super_users="User:admin",
            wal_capacity_bytes=64 << 20,
        )

    @property
    def servers(self) -> str:
        listeners: str = self.process.events("serving")[-1]["listeners"]
        return listeners.split("://")[1]

    def confluent(self, name: str, **more: Any) -> dict[str, Any]:
        """Settings of librdkafka for a principal."""
        shown: Issued = self.issued[name]
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.file),
            "ssl.certificate.location": str(shown.certificate),
            "ssl.key.location": str(shown.key),
            "log_level": 0,
            **more,
        }

    def tool(self, name: str, tool: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a tool of Apache Kafka as a principal."""
        path = self.folder / f"{name}.properties"
        properties = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.file,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.issued[name].both,
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        where = ["--bootstrap-server", self.servers, "--command-config", str(path)]
        return run_tool(tool, [*where, *arguments], stdin=stdin)

    def run(self, name: str, tool: str, *arguments: str, stdin: str = "") -> str:
        """Run a tool that must succeed, and return its output."""
        done = self.tool(name, tool, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    made = SecureNode(tmp_path_factory.mktemp("acls"))
    with made.process as process:
        yield made
        assert process.terminate() == 0


def test_kafka_acls_lets_a_java_producer_and_a_consumer_in(node: SecureNode) -> None:
    node.run("admin", TOPICS, "--create", "--topic", "tools")
    denied = node.tool("alice", PRODUCER, "--topic", "tools", stdin="a\n")
    assert "TopicAuthorizationException: Not authorized to access topics: [tools]" in denied.stdout + denied.stderr
    refused = node.tool("alice", ACLS, "--list")
    assert "ClusterAuthorizationException" in refused.stdout + refused.stderr
    both = ["--add", "--allow-principal", "User:alice", "--topic", "tools"]
    assert "Adding ACLs" in node.run("admin", ACLS, *both, "--producer", "--consumer", "--group", "readers")
    node.run("admin", ACLS, "--add", "--deny-principal", "User:bob", "--operation", "All", "--topic", "tools")
    listed = node.run("admin", ACLS, "--list", "--topic", "tools")
    assert "(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    assert "(principal=User:bob, host=*, operation=ALL, permissionType=DENY)" in listed
    node.run("alice", PRODUCER, "--topic", "tools", stdin="one\ntwo\n")
    limits = ["--from-beginning", "--max-messages", "2", "--timeout-ms", "30000"]
    read = node.run("alice", CONSUMER, "--topic", "tools", "--group", "readers", *limits)
    assert read.split() == ["one", "two"]
    other = node.tool("alice", CONSUMER, "--topic", "tools", "--group", "strangers", *limits)
    assert "GroupAuthorizationException: Not authorized to access group: strangers" in other.stdout + other.stderr
    node.run("admin", ACLS, "--remove", "--force", "--topic", "tools")
    assert "principal=" not in node.run("admin", ACLS, "--list", "--topic", "tools")
    denials = node.process.events("denied")
    assert {line["principal"] for line in denials} >= {"User:alice"}
    assert {(line["operation"], line["resource_type"]) for line in denials} >= {
        ("DESCRIBE", "TOPIC"),
        ("DESCRIBE", "CLUSTER"),
    }


def test_librdkafka_manages_acls_and_is_denied(node: SecureNode) -> None:
    admin = AdminClient(node.confluent("admin"))
    acl = AclBinding(
        ResourceType.TOPIC,
        "rd-",
        ResourcePatternType.PREFIXED,
        "User:bob",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    for done in admin.create_acls([acl]).values():
        done.result(TIMEOUT_S)
    of_anything: Any = None
    everything = AclBindingFilter(
        ResourceType.ANY,
        of_anything,
        ResourcePatternType.ANY,
        "User:bob",
        of_anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert acl in admin.describe_acls(everything).result(TIMEOUT_S)
    failures: list[KafkaError] = []
    producer = Producer(node.confluent("bob", **{"message.timeout.ms": 10_000}))
    for topic in ("rd-mine", "other"):
        producer.produce(topic, "v", on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures
    assert {each.code() for each in failures} == {KafkaError.TOPIC_AUTHORIZATION_FAILED}, "neither may be created"
    other = AdminClient(node.confluent("bob"))
    with pytest.raises(KafkaException) as caught:
        other.create_acls([acl])[acl].result(TIMEOUT_S)
    assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    consumer = Consumer(node.confluent("bob", **{"group.id": "g"}))
    consumer.subscribe(["rd-mine"])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() in {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED}
    (deleted,) = (done.result(TIMEOUT_S) for done in admin.delete_acls([everything]).values())
    assert deleted == [acl]
