"""The five-minute path of docs/security.md, command by command, and the files of `anabranch security init`."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient
from cryptography import x509

from anabranch.broker.node.settings.sources import load
from anabranch.broker.operator.cli.security import security
from benchmarks.lab.processes import free_port
from tests.interop.test_acls import ACLS
from tests.support.kafka_tools import CONSUMER, PRODUCER, kafka_tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 100


def blocks() -> list[str]:
    """Commands of the section, in their order."""
    text = (ROOT / "docs" / "security.md").read_text()
    section = text[text.index("## A secure node in five minutes") :]
    return BLOCK.findall(section[: section.index("\n## ", 1)])


def programs(folder: Path) -> Path:
    """Programs under the names that the documents use."""
    folder.mkdir()
    tools = {"console-producer": PRODUCER, "console-consumer": CONSUMER, "acls": ACLS}
    shims = {f"kafka-{name}.sh": kafka_tool(main) for name, main in tools.items()}
    shims["anabranch"] = [sys.executable, "-m", "anabranch"]
    for name, words in shims.items():
        path = folder / name
        quoted = " ".join(f"'{word}'" for word in words)
        path.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
        path.chmod(0o755)
    return folder


class Trial:
    """The commands of the documents, with a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks = blocks()
        self.port, self.admin_port = free_port(), free_port()
        self.environment = {
            **os.environ,
            "PATH": f"{programs(folder / 'bin')}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ANABRANCH_WAL_CAPACITY_BYTES": str(8 << 20),
            "ANABRANCH_WAL_ALLOW_VOLATILE": "true",
            "ANABRANCH_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        self.output = ""

    def run(self, commands: str) -> str:
        """Run commands, and return their output."""
        text = commands.replace("9094", str(self.port))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        self.output += done.stdout + done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start the node; its log is a file."""
        with (self.folder / "log").open("w") as log:
            return subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, stderr=log, text=True
            )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The set-up of the documents, whose node serves."""
    made = Trial(tmp_path_factory.mktemp("trial"))
    init, serve = made.blocks[:2]
    made.run(f"{init.strip()} --port {made.port} --admin-port {made.admin_port}")
    node = made.start(serve.strip())
    try:
        wait_until(lambda: '"serving"' in made.log or node.poll() is not None, "the node serves")
        assert node.poll() is None, made.log
        yield made
        node.terminate()
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()


def test_the_five_minutes_of_the_documents(trial: Trial) -> None:
    as_admin, as_alice = trial.blocks[2:]
    said = trial.run(as_admin)
    assert "created topic orders" in said
    assert "first order" in said
    before, allowed, after = as_alice.partition("anabranch acl add")
    trial.run(before)
    without_acls = trial.run(
        "kafka-console-consumer.sh --bootstrap-server 127.0.0.1:9094 --command-config secure/alice.properties "
        "--topic orders --group readers --timeout-ms 60000 2>&1 || true"  # it ends before, when it is refused
    )
    assert "AuthorizationException" in without_acls
    assert "first order" in trial.run(allowed + after)
    secure = trial.folder / "secure"
    properties: dict[str, Any] = dict(
        line.split("=", 1) for line in (secure / "admin.librdkafka.properties").read_text().splitlines()
    )
    assert "orders" in AdminClient(properties).list_topics(timeout=30).topics
    password = properties["sasl.password"]
    assert f'password="{password}"' in (secure / "admin.properties").read_text()
    files = ("alice.password", "read-tokens", "operate-tokens")
    for secret in (password, *((secure / name).read_text().strip() for name in files)):
        assert secret not in trial.output
        assert secret not in trial.log


def test_the_admin_port_needs_a_token(trial: Trial) -> None:
    denied = subprocess.run(
        ["curl", "-s", "--cacert", "secure/ca.pem", f"https://127.0.0.1:{trial.admin_port}/api/v1/status"],
        cwd=trial.folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert '"node"' not in denied.stdout
    assert "127.0.0.1" in trial.run("anabranch cluster status --config secure/node.toml")


def init(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(security, ["init", str(folder), *arguments])


def test_what_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    result = init(folder, "--name", "kafka.example.com", "--listen", "0.0.0.0", "--client", "billing", "--days", "9")
    assert result.exit_code == 0, result.output
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    secret = {"ca.key", "node.key", "read-tokens", "operate-tokens", "admin.properties", "admin.librdkafka.properties",
              "billing.key", "billing.both.pem", "billing.properties"}  # fmt: skip
    public = {"ca.pem", "node.pem", "node.toml", "billing.pem"}
    assert {name for name, mode in modes.items() if mode == 0o600} == secret
    assert {name for name, mode in modes.items() if mode == 0o644} == public
    assert modes["data"] == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(name in result.output for name in secret | public)
    for name in secret:
        content = (folder / name).read_text().strip()
        assert content not in result.output
    node = x509.load_pem_x509_certificate((folder / "node.pem").read_bytes())
    names = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName)[:2] == ["kafka.example.com", "localhost"]
    node.verify_directly_issued_by(x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))
    settings = load({}, {}, folder / "node.toml")
    assert settings.listener.advertised_listeners == "SASL_SSL://kafka.example.com:9094,SSL://kafka.example.com:9093"
    assert settings.authorizer.super_users == "User:admin"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    existing = tmp_path / "there"
    existing.mkdir()
    result = init(existing)
    assert result.exit_code == 1
    assert result.output == f"Error: {existing} exists already: nothing was changed. Name a new directory\n"
    result = init(tmp_path / "new", "--client", "../x")
    assert result.exit_code == 2
    assert "expected letters, digits, - and _" in result.output
    assert init(tmp_path / "new", "--client", "admin").exit_code == 2
    (tmp_path / "file").write_text("")
    assert init(tmp_path / "file" / "new").exit_code == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["there"]


def test_the_check_of_certificates(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert init(folder, "--days", "9").exit_code == 0

    def check() -> Result:
        return CliRunner().invoke(security, ["check", "--config", str(folder / "node.toml")])

    result = check()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines] == ["listeners", "admin port"]
    assert all(re.search(r"CN=127\.0\.0\.1, valid until \d{4}-\d\d-\d\d \(8 days\)", line) for line in lines)
    (folder / "node.key").write_text("x")
    result = check()
    assert result.exit_code == 1
    assert "there is no valid private key" in result.output
    (folder / "node.toml").write_text("")
    assert check().output.splitlines() == ["listeners: no TLS", "admin port: no TLS"]
