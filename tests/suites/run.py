"""Run the integration tests of client libraries against a node, a cluster, or Apache Kafka for comparison.

    python -m tests.suites.run [--against node|kafka] [--nodes 3] [--set NAME=VALUE] [SUITE ...]

Each suite has a folder and a virtual environment in the cache (ANABRANCH_CACHE). The failed tests are compared with
`expected/<suite>.txt`: the run fails if any other test failed, and reports listed tests that pass now. Sources that are
not in the package registry are cloned, or taken from `ANABRANCH_SUITE_SOURCES/<client>` where that is set.

With more than one node, a suite is told the address of the first, and the tests in `expected/<suite>-cluster.txt` may
fail, too.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin

from anabranch.broker.kafka.sasl.plain import SALT_BYTES, hash_password
from anabranch.spark.java import cache_folder
from benchmarks.lab.processes import ApacheKafka
from tests.differential.kafka_cluster import kafka_cluster
from tests.suites.clients import PASSWORD, SUITES, USER, Suite
from tests.support.certificates import Authority
from tests.support.node import NodeProcess
from tests.support.node_processes import node_processes
from tests.support.postgres import postgres_server

HERE = Path(__file__).parent
USERS: Any = confluent_kafka.admin  # its types for users are not exported
BUILD_TOOLS = ("setuptools>=80", "wheel", "Cython", "packaging", "pytest<9")
TEST_TIMEOUT_S = 120
QUICK_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
KAFKA_PROPERTIES = {"group.initial.rebalance.delay.ms": "0"}
OUTCOME = re.compile(r"^(FAILED|ERROR) (\S+)")


def client_of(suite: Suite) -> tuple[str, str]:
    """Name and version of a suite's client."""
    client, version = re.sub(r"\[.*\]", "", suite.requirement).split("==")
    return client, version


def home_of(suite: Suite) -> Path:
    """Folder of a client's suites in the cache, for its version."""
    return cache_folder() / "suites" / "-".join(client_of(suite))


def prepare(suite: Suite) -> Path:
    """Make the suite's environment and lay out its tests; returns the Python of the environment."""
    home = home_of(suite)
    python = home / "venv" / "bin" / "python"
    if not (home / "ready").is_file():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        venv.create(home / "venv", with_pip=True)
        pip(python, "install", *BUILD_TOOLS, suite.requirement, *suite.needs)
        fetch(suite, python, home / "source")
        (home / "ready").touch()
    lay_out(suite, home)
    return python


def pip(python: Path, *arguments: str | Path) -> None:
    """Run pip quietly."""
    command = [python, "-m", "pip", "--disable-pip-version-check", arguments[0], "-q", *arguments[1:]]
    subprocess.run(command, check=True)


def fetch(suite: Suite, python: Path, source: Path) -> None:
    """Bring the source with the tests."""
    given = os.environ.get("ANABRANCH_SUITE_SOURCES")
    checkout = Path(given or "") / client_of(suite)[0]
    if given and checkout.is_dir():
        shutil.copytree(checkout, source)
    elif suite.repository is not None:
        clone = ["git", "clone", "-q", "--depth", "1", "--branch", str(suite.tag), suite.repository, str(source)]
        subprocess.run(clone, check=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            alone = ("--no-binary", ":all:", "--no-deps", "--no-build-isolation")
            pip(python, "download", *alone, "-d", folder, suite.requirement)
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
            (unpacked,) = (path for path in Path(folder).iterdir() if path.is_dir())
            shutil.move(unpacked, source)


def lay_out(suite: Suite, home: Path) -> None:
    """Copy the tests into a separate folder, with the files of `overlay`."""
    work = home / "work"
    shutil.rmtree(work, ignore_errors=True)
    for folder in suite.folders:
        shutil.copytree(home / "source" / folder, work / folder)
    for target, name in suite.overlay.items():
        (work / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / "overlay" / name, work / target)


@contextmanager
def broker(suite: Suite, kind: str, nodes: int) -> Iterator[dict[str, str]]:
    """Run the broker under test; yields what a suite may be told of it, by names."""
    if suite.is_secure:
        with tempfile.TemporaryDirectory(prefix="anabranch-suite-") as folder, secure_node(suite, Path(folder)) as told:
            yield told
    else:
        with plain_broker(suite, kind, nodes) as told:
            yield told


@contextmanager
def secure_node(suite: Suite, folder: Path) -> Iterator[dict[str, str]]:
    """Run a node with SASL and TLS; yields its listeners, and the folder of the authority of its certificate."""
    authority = Authority(folder / "ca")
    shutil.copyfile(authority.file, authority.folder / "ca-cert")
    users = folder / "users"
    users.write_text(f"{USER}:{hash_password(PASSWORD, os.urandom(SALT_BYTES)).to_text()}\n")
    with NodeProcess(
        folder,
        wal_capacity_bytes=64 << 20,
        listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        sasl_enabled_mechanisms="SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        sasl_plain_users_file=users,
        ssl_certificate_file=authority.issue("localhost").both,
        **suite.node_settings,
    ) as node:
        admin = USERS.AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        for mechanism in (USERS.ScramMechanism.SCRAM_SHA_256, USERS.ScramMechanism.SCRAM_SHA_512):
            info = USERS.ScramCredentialInfo(mechanism, 4096)
            change = USERS.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
            admin.alter_user_scram_credentials([change])[USER].result(TEST_TIMEOUT_S)
        listeners: str = node.events("serving")[-1]["listeners"]
        yield {"bootstrap": node.bootstrap, "listeners": listeners, "authority": str(authority.folder)}


@contextmanager
def plain_broker(suite: Suite, kind: str, nodes: int) -> Iterator[dict[str, str]]:
    """Run a node, a cluster, or Apache Kafka; yields `bootstrap`, and `registry`, empty without one."""
    with tempfile.TemporaryDirectory(prefix="anabranch-suite-") as folder:
        if nodes > 1:
            with cluster(suite, kind, Path(folder), nodes) as told:
                yield told
        elif kind == "node":
            with NodeProcess(Path(folder), wal_capacity_bytes=64 << 20, **suite.node_settings) as node:
                yield told_of(node)
        else:
            properties = {**KAFKA_PROPERTIES, **suite.kafka_properties}
            with ApacheKafka(Path(folder) / "home", properties=properties, jvm=QUICK_JVM) as kafka:
                yield {"bootstrap": f"127.0.0.1:{kafka.port}", "registry": ""}


def told_of(node: NodeProcess) -> dict[str, str]:
    """Return what a suite may be told of a node."""
    return {"bootstrap": node.bootstrap, "registry": f"http://{node.admin}/schema-registry"}


@contextmanager
def cluster(suite: Suite, kind: str, folder: Path, nodes: int) -> Iterator[dict[str, str]]:
    """Run several nodes on PostgreSQL, or brokers of Apache Kafka; yields the addresses of the first."""
    if kind == "kafka":
        properties = {**KAFKA_PROPERTIES, **suite.kafka_properties}
        properties.pop("node.id", None)
        with kafka_cluster(folder, nodes, properties) as brokers:
            yield {"bootstrap": f"127.0.0.1:{brokers[1].port}", "registry": ""}
        return
    settings = {"wal_capacity_bytes": 64 << 20, **suite.node_settings}
    with (
        postgres_server() as server,
        node_processes(folder, nodes, server.new_database(), **settings) as running,
    ):
        yield told_of(running[0])


def run(suite: Suite, python: Path, kind: str, nodes: int, told: Mapping[str, str]) -> tuple[set[str], str]:
    """Run a suite, with `told` in its environment; returns the tests that failed, and pytest's last line."""
    work = home_of(suite) / "work"
    part = f"{'secure-' * suite.is_secure}{'registry-' * suite.needs_registry}"
    log = home_of(suite) / f"{part}{kind}{'' if nodes == 1 else '-cluster'}.log"
    with broker(suite, kind, nodes) as told_of_it:
        environ = {name: value.format(**told_of_it, home=work) for name, value in suite.environ.items()}
        left_out = [argument for path in suite.deselected for argument in ("--ignore", path)]
        options = [
            "-q",
            "-rfE",
            "--tb=short",
            "-o",
            "addopts=",
            "-p",
            "no:cacheprovider",
            "--timeout",
            str(TEST_TIMEOUT_S),
        ]
        done = subprocess.run(
            [python, "-m", "pytest", *options, *suite.options, *left_out, *suite.paths],
            cwd=work,
            env={**os.environ, **environ, **told, "PYTHONPATH": str(work)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    log.write_text(done.stdout)
    failed = {found[2] for line in done.stdout.splitlines() if (found := OUTCOME.match(line)) and "::" in found[2]}
    return failed, done.stdout.rstrip().splitlines()[-1]


def stop(*_: object) -> None:
    """Leave, by the ways out of all blocks, so that the broker and the tests end, too. For SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def expected(suite: Suite, nodes: int = 1) -> set[str]:
    """The tests that are known to fail: one a line, with the reasons in comments."""
    return expected_in(suite.name, nodes)


def expected_in(name: str, nodes: int) -> set[str]:
    """The tests of a suite that are known to fail, by its name."""
    files = [HERE / "expected" / f"{name}.txt"]
    if nodes > 1:
        files.append(HERE / "expected" / f"{name}-cluster.txt")
    lines = [line for file in files if file.is_file() for line in file.read_text().splitlines()]
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value


def main(arguments: Sequence[str]) -> int:
    """Run the suites; 1 when a test fails against a node that is not in the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.run", description=__doc__.split("\n\n")[0])
    parser.add_argument("--against", choices=("node", "kafka"), default="node")
    parser.add_argument("--nodes", type=int, default=1, metavar="COUNT", help="nodes of the cluster under test")
    parser.add_argument(
        "--set", action="append", default=[], type=_assignment, metavar="NAME=VALUE", help="for the tests' environment"
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(suite.name for suite in SUITES)}")
    wanted = parser.parse_args(arguments)
    unknown = set(wanted.suites) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"unknown suite {min(unknown)}")
    wrong = False
    for suite in SUITES:
        if wanted.suites and suite.name not in wanted.suites:
            continue
        if suite.is_secure and (wanted.against != "node" or wanted.nodes > 1):
            sys.stdout.write(f"{suite.name}: left out, since it runs against a single node only\n")
            continue
        if suite.needs_registry and wanted.against != "node":
            sys.stdout.write(f"{suite.name}: left out, since Apache Kafka has no schema registry\n")
            continue
        failed, summary = run(suite, prepare(suite), wanted.against, wanted.nodes, dict(wanted.set))
        known = expected(suite, wanted.nodes)
        sys.stdout.write(f"{suite.name}: {summary}\n")
        for test in sorted(failed):
            sys.stdout.write(f"  failed{'' if test in known else ', NOT EXPECTED'}: {test}\n")
        for test in sorted(known - failed):
            sys.stdout.write(f"  does not fail any more: {test}\n")
        wrong |= not failed <= known
    return 1 if wrong and wanted.against == "node" else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main(sys.argv[1:]))
