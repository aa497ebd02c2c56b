"""Run kafka-go's own tests against a node, or Apache Kafka for comparison; they need Go, and root for their ports.

    python -m tests.suites.kafka_go [--against node|kafka] [--run REGEX]

The tests come with the module, from the Go module proxy, and are built once into the cache (ANABRANCH_CACHE). They want
a broker with number 1 at localhost:9092, and its listener with SASL at port 9093: broker and tests run in a network of
their own. The failed ones are compared with `expected/kafka-go.txt`, as in `tests.suites.run`.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anabranch.broker.kafka.sasl.plain import SALT_BYTES, hash_password
from benchmarks.lab.processes import ApacheKafka
from tests.suites.golang import Module, go_on_in_own_network
from tests.suites.run import KAFKA_PROPERTIES, TEST_TIMEOUT_S, USERS
from tests.support.node import NodeProcess

MODULE = Module("kafka-go", "github.com/segmentio/kafka-go", "v0.4.51")
PACKAGES = (".", "./compress", "./sasl", "./topics")
PORT, SASL_PORT = 9092, 9093
LISTENERS = f"PLAINTEXT://localhost:{PORT},SASL_PLAINTEXT://localhost:{SASL_PORT}"
PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
PLAIN_USER, PLAIN_PASSWORD = "adminplain", "admin-secret"
SCRAM_USERS = {
    "adminscram256": (USERS.ScramMechanism.SCRAM_SHA_256, "admin-secret-256"),
    "adminscram512": (USERS.ScramMechanism.SCRAM_SHA_512, "admin-secret-512"),
}
SUPER_USERS = ";".join(f"User:{name}" for name in ("ANONYMOUS", PLAIN_USER, *SCRAM_USERS))
MESSAGE_BYTES = 200_000_000
"""These are the settings of the suite's own broker, in its `docker_compose_versions/docker-compose-400.yml`."""
JVM = ("-Xmx4g", "-XX:+UseSerialGC")
"""Fetches of the suite allow messages of that size, and Apache Kafka takes the memory for them."""
JAAS = "org.apache.kafka.common.security"
MENDED = {
    "reader_test.go": (
        "conn, err := cg.coordinator()",
        "cg.config.Timeout = defaultTimeout\n\tcg.config.connect = makeConnect(cg.config)\n\t{}",
    )
}
"""A function of the tests that ends the program, whatever the broker, for want of these lines."""
ENVIRON = {"KAFKA_VERSION": "4.3.1", "KAFKA_SKIP_NETTEST": "1"}
"""As its own pipeline runs it: the tests of a network connection by way of a topic fail for its makers, too."""


@contextmanager
def broker(kind: str, folder: Path) -> Iterator[None]:
    """Run the broker with the suite's users."""
    if kind == "node":
        users = folder / "users"
        users.write_text(f"{PLAIN_USER}:{hash_password(PLAIN_PASSWORD, os.urandom(SALT_BYTES)).to_text()}\n")
        with NodeProcess(
            folder,
            wal_capacity_bytes=1 << 30,
            listeners=LISTENERS,
            sasl_enabled_mechanisms=MECHANISMS,
            sasl_plain_users_file=users,
            authorizer_enabled=True,
            authorizer_super_users=SUPER_USERS,
            authorizer_allow_everyone_if_no_acl_found=True,
            topic_max_message_bytes=MESSAGE_BYTES,
        ):
            add_users()
            yield
    else:
        name = "listener.name.sasl_plaintext"
        plain = f'required user_{PLAIN_USER}="{PLAIN_PASSWORD}"'
        properties = {
            **KAFKA_PROPERTIES,
            "advertised.listeners": LISTENERS,
            "listener.security.protocol.map": PROTOCOLS,
            "sasl.enabled.mechanisms": MECHANISMS,
            f"{name}.plain.sasl.jaas.config": f"{JAAS}.plain.PlainLoginModule {plain};",
            f"{name}.scram-sha-256.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
            f"{name}.scram-sha-512.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": SUPER_USERS,
            "message.max.bytes": str(MESSAGE_BYTES),
        }
        other = f",SASL_PLAINTEXT://127.0.0.1:{SASL_PORT}"
        kafka = ApacheKafka(folder / "home", properties=properties, jvm=JVM, other_listeners=other)
        kafka.port = PORT
        with kafka:
            add_users()
            yield


def add_users() -> None:
    """Add the users of SCRAM."""
    admin = USERS.AdminClient({"bootstrap.servers": f"localhost:{PORT}", "log_level": 0})
    for user, (mechanism, password) in SCRAM_USERS.items():
        info = USERS.ScramCredentialInfo(mechanism, 4096)
        change = USERS.UserScramCredentialUpsertion(user, info, password.encode())
        admin.alter_user_scram_credentials([change])[user].result(TEST_TIMEOUT_S)


def main(arguments: Sequence[str]) -> int:
    """Run the tests; 1 when one fails against a node that is not in the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.kafka_go", description=__doc__.split("\n\n")[0])
    parser.add_argument("--against", choices=("node", "kafka"), default="node")
    parser.add_argument("--run", metavar="REGEX", default=".", help="tests to run [default: all]")
    parser.add_argument("--inside", action="store_true", help="the ports are free: no network of its own")
    wanted = parser.parse_args(arguments)
    if not wanted.inside:
        MODULE.build(PACKAGES, mended=MENDED)
        go_on_in_own_network("tests.suites.kafka_go", arguments)
    outcomes: dict[str, str] = {}
    ended = True
    with tempfile.TemporaryDirectory(prefix="anabranch-suite-") as folder, broker(wanted.against, Path(folder)):
        for package in PACKAGES:
            log = f"{wanted.against}-{MODULE.program(package).stem}"
            found, as_it_should = MODULE.run(package, wanted.run, ENVIRON, log)
            outcomes |= found
            ended &= as_it_should
    good = MODULE.report(outcomes, 1) and ended
    return 1 if not good and wanted.against == "node" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
