"""The two brokers with their authorizers, and TLS connections to them by several principals."""

import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from benchmarks.lab.processes import ApacheKafka, free_port
from tests.differential.acls.requests import UNKNOWN_ID
from tests.differential.answers import CLOSED, NO_ANSWER, Normal, Symbols, Tree
from tests.differential.conftest import KAFKA_SETTINGS, TOKEN_KEY, quick_jvm
from tests.differential.peer import ClosedError, Peer, Wire
from tests.support.certificates import Authority
from tests.support.node import NodeProcess

PRINCIPALS = ("alice", "bob")
ADMIN, PROBE = "admin", "probe"
SUPER_USERS = f"User:CN={ADMIN};User:ANONYMOUS"
"""Apache Kafka's broker is anonymous to its controller."""
WAIT_S = 30.0
FILTER = DeleteAclsFilter(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)


class Broker:
    """One of the two, with a connection for each principal."""

    def __init__(self, name: str, port: int, plain_port: int, contexts: Mapping[str, ssl.SSLContext]) -> None:
        self.name = name
        self._port = port
        self._contexts = contexts
        self._wires: dict[str, Wire] = {}
        symbols = Symbols()
        symbols.name("topic", UNKNOWN_ID, "nothing")
        self._normal = Normal(symbols, {port: "<port>", plain_port: "<plain port>"})
        self._probes = 0

    def call(self, principal: str, message: Any, version: int) -> Any:
        """Send a request, and return the answer. Raises ClosedError."""
        if principal not in self._wires:
            self._wires[principal] = Wire(Peer(self.name, "127.0.0.1", self._port), context=self._contexts[principal])
        wire = self._wires[principal]
        try:
            wire.send(message, version)
            return wire.receive(type(message), version)
        except ClosedError:
            self._wires.pop(principal).close()
            raise

    def tree(self, principal: str, message: Any, version: int) -> Tree:
        """Send a request, and return its answer as a tree."""
        try:
            return self._normal.tree(self.call(principal, message, version))
        except ClosedError:
            return CLOSED
        except TimeoutError:
            self._wires.pop(principal).close()
            return NO_ANSWER

    def admin(self, message: Any, version: int) -> Any:
        """Send a request as super user."""
        return self.call(ADMIN, message, version)

    def until(self, message: Any, version: int, done: Callable[[Any], bool], principal: str = ADMIN) -> Any:
        """Ask until the answer is as it should be."""
        deadline = time.monotonic() + WAIT_S
        while not done(answer := self.call(principal, message, version)):
            assert time.monotonic() < deadline, f"{self.name}: waited too long, last answer {answer}"
            time.sleep(0.01)
        return answer

    def create_topics(self, *names: str, partitions: int = 2) -> dict[str, bytes]:
        """Create topics; returns their ids."""
        wanted = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
        created = self.admin(CreateTopicsRequest(topics=wanted, timeout_ms=30_000), 7)
        assert not any(topic.error_code for topic in created.topics), created
        self._normal.tree(created)  # the ids in it get their names
        return {topic.name: topic.topic_id for topic in created.topics}

    def set_acls(self, acls: Sequence[AclCreation]) -> None:
        """Replace all ACLs, and wait until the broker decides by them, and Apache Kafka's controller, too.

        The last ACL allows a principal something that it may not do otherwise.
        """
        self._probes += 1
        topic = f"probed-{self._probes}"
        probe = AclCreation(
            resource_type=2,
            resource_name=topic,
            resource_pattern_type=3,
            principal=f"User:CN={PROBE}",
            host="*",
            operation=2,
            permission_type=3,
        )
        deleted = self.admin(DeleteAclsRequest(filters=[FILTER]), 3)
        assert not any(each.error_code for each in deleted.filter_results), deleted
        created = self.admin(CreateAclsRequest(creations=[*acls, probe]), 3)
        assert not any(each.error_code for each in created.results), created
        wanted = [CreatableTopic(name=topic, num_partitions=1, replication_factor=1)]
        request = CreateTopicsRequest(topics=wanted, timeout_ms=5000, validate_only=True)
        self.until(request, 7, lambda answer: not answer.topics[0].error_code, PROBE)
        self.until(*_metadata_of(topic), PROBE)

    def close(self) -> None:
        """Close all connections."""
        for wire in self._wires.values():
            wire.close()


def _metadata_of(topic: str) -> tuple[Any, int, Callable[[Any], bool]]:
    """Return a request whose answer tells that the broker has the ACL of the probe."""
    from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return request, 9, lambda answer: answer.topics[0].error_code == 3


@contextmanager
def brokers(folder: Path, **settings: str) -> Iterator[tuple[Broker, Broker]]:
    """Run Apache Kafka and a node with the same certificates; `settings` are those of Kafka's authorizer."""
    authority = Authority(folder / "ca")
    certificate = authority.issue("localhost")
    names = (*PRINCIPALS, ADMIN, PROBE)
    contexts = {name: authority.client_context(authority.issue(name)) for name in names}
    tls_port = free_port()
    kafka = ApacheKafka(
        folder / "kafka",
        properties={
            **KAFKA_SETTINGS,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.file),
            "ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": SUPER_USERS,
            "delegation.token.secret.key": TOKEN_KEY,
            **settings,
        },
        jvm=quick_jvm(),
        other_listeners=f",SSL://127.0.0.1:{tls_port}",
    )
    key = folder / "token-key"
    key.write_text(TOKEN_KEY)
    node = NodeProcess(
        folder / "node",
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        security_protocol_map="SSL:SSL",
        ssl_certificate_file=certificate.both,
        ssl_ca_file=authority.file,
        ssl_client_auth="required",
        authorizer_enabled=True,
        authorizer_super_users=SUPER_USERS,
        group_offsets_partitions=1,
        transaction_state_partitions=1,
        share_state_partitions=1,
        delegation_token_secret_key_file=key,
        wal_capacity_bytes=64 << 20,
        **{name.replace(".", "_"): value for name, value in settings.items()},
    )
    (folder / "node").mkdir()
    with kafka, node:
        listeners: str = node.events("serving")[-1]["listeners"]
        ports = {
            name: int(rest.rpartition(":")[2])
            for name, _, rest in (each.partition("://") for each in listeners.split(","))
        }
        pair = (
            Broker("Apache Kafka", tls_port, kafka.port, contexts),
            Broker("anabranch", ports["SSL"], ports["PLAINTEXT"], contexts),
        )
        try:
            yield pair
        finally:
            for broker in pair:
                broker.close()
        assert node.terminate() == 0
