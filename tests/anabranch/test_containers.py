"""`AnabranchContainer`, with an engine of containers that is none: it runs the command as a process, on other ports."""

import importlib
import io
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from testcontainers.community.kafka import KafkaContainer, RedpandaContainer
from testcontainers.core import container as core
from testcontainers.core.config import ConnectionMode, testcontainers_config

from anabranch.broker.node.settings.sources import load, unknown_environment
from anabranch.extras import MissingExtra
from anabranch.testing import containers
from anabranch.testing.containers import ADMIN_PORT, COMMAND_FILE, IMAGE, KAFKA_PORT, NETWORK_PORT, AnabranchContainer
from benchmarks.lab.processes import free_port
from tests.support import tools
from tests.support.wheel import ROOT

OF_THEIR_IMAGES: Final = {"configure", "create_file", "tc_start", "with_cluster_id"}
"""Methods of their classes that have to do with what is in their images."""


class Process:
    """A container in miniature: files under another root, ports that are mapped to free ones, loopback only."""

    id = short_id = "miniature"

    def __init__(self, root: Path, entrypoint: str, command: list[str], **created: Any) -> None:
        self.root = root / str(len(list(root.iterdir())))
        self.root.mkdir()
        self.created = created
        self.ports = {port: free_port() for port in (KAFKA_PORT, NETWORK_PORT, ADMIN_PORT)}
        self._file = self.root / Path(COMMAND_FILE).name
        self._command = [entrypoint, *(part.replace(COMMAND_FILE, str(self._file)) for part in command)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with (self.root / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, "PATH": path}, cwd=self.root
            )

    @property
    def status(self) -> str:
        assert self._process is not None
        return "running" if self._process.poll() is None else "exited"

    def reload(self) -> None:
        """Do nothing: it is always up to date."""

    def logs(self, *, stdout: bool = True, stderr: bool = True) -> bytes:
        return (self.root / "log").read_bytes() if stdout else b""

    def put_archive(self, path: str, data: bytes) -> bool:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            (member,) = archive.getmembers()
            assert f"{path}{member.name.lstrip('/')}" == COMMAND_FILE
            content = archive.extractfile(member)
            assert content is not None
            text = content.read().decode()
        text = re.sub(r"\b(9092|29092|9644)\b", lambda port: str(self.ports[int(port[1])]), text)
        self._file.write_text(text.replace("://:", "://127.0.0.1:").replace("0.0.0.0", "127.0.0.1"))
        return True

    def remove(self, *, force: bool, v: bool) -> None:
        assert force
        assert self._process is not None
        self._process.terminate()
        self._process.wait()


class Engine:
    """Client of the engine, as far as testcontainers uses it for one container."""

    root: Path

    def __init__(self, **_: Any) -> None:
        self.client = self
        self.process: Process | None = None

    def create(self, image: str, **wanted: Any) -> Process:
        self.process = Process(self.root, image=image, **wanted)
        return self.process

    def start(self, process: Process) -> None:
        process.start()

    def get_connection_mode(self) -> ConnectionMode:
        return ConnectionMode.docker_host

    def host(self) -> str:
        return "localhost"

    def port(self, _container_id: str, port: int) -> int:
        assert self.process is not None
        return self.process.ports[port]

    def close(self) -> None:
        """Do nothing: there is no connection."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "DockerClient", Engine)
        patch.setattr(testcontainers_config, "ryuk_disabled", True)
        patch.setattr(Engine, "root", tmp_path_factory.mktemp("container"), raising=False)
        yield


@pytest.mark.slow
def test_clients_outside_and_in_its_network_use_it(engine: None) -> None:
    with AnabranchContainer(settings={"topic.num_partitions": 3}).with_kraft() as anabranch:
        process: Any = anabranch.get_wrapped_container()
        assert process.created["image"] == IMAGE
        assert set(process.created["ports"]) == {str(KAFKA_PORT), str(ADMIN_PORT)}
        servers = anabranch.get_bootstrap_server()
        assert servers == f"localhost:{process.ports[KAFKA_PORT]}"
        producer = Producer({"bootstrap.servers": servers})
        producer.produce("orders", b"tea")
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "kitchen", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = consumer.poll(30)
        consumer.close()
        assert message is not None
        assert message.value() == b"tea"
        for port in (KAFKA_PORT, NETWORK_PORT):
            found = AdminClient({"bootstrap.servers": f"localhost:{process.ports[port]}"}).list_topics(timeout=30)
            (broker,) = found.brokers.values()
            assert broker.port == process.ports[port]
            assert len(found.topics["orders"].partitions) == 3
        with urllib.request.urlopen(f"{anabranch.get_schema_registry_address()}/subjects", timeout=30) as answer:
            assert answer.read() == b"[]"
    assert process.status == "exited"


@pytest.mark.slow
def test_one_that_does_not_start_says_why(engine: None) -> None:
    with pytest.raises(RuntimeError) as failed, AnabranchContainer(settings={"topic.num_partitons": 3}):
        pass
    assert "unknown setting 'topic.num_partitons'. Did you mean 'topic.num_partitions'" in failed.value.__notes__[0]


def test_it_has_the_methods_of_kafka_and_redpanda() -> None:
    theirs = {name for kind in (KafkaContainer, RedpandaContainer) for name in vars(kind) if name.islower()}
    missing = {name for name in theirs if not name.startswith("_") and not hasattr(AnabranchContainer, name)}
    assert missing == OF_THEIR_IMAGES


def test_it_asks_for_testcontainers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    with pytest.raises(MissingExtra) as missing:
        importlib.reload(containers)
    assert str(missing.value) == (
        "AnabranchContainer needs testcontainers, which is missing or too old: pip install 'anabranch[containers]'"
    )


def test_its_image_is_that_of_the_project() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (exposed,) = re.findall(r"^EXPOSE (.+)$", dockerfile, re.MULTILINE)
    assert set(map(int, exposed.split())) == {KAFKA_PORT, ADMIN_PORT}
    assert "ENV PATH=/opt/anabranch/bin:$PATH" in dockerfile, "the command is found"
    name = IMAGE.partition(":")[0]
    assert f"docker build --target node -t {name} ." in (ROOT / "docs" / "deployment.md").read_text()


def test_the_service_of_a_workflow_is_right(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "tests.yml"
    file.write_text(workflow)
    found = subprocess.run([tools.actionlint(), "-no-color", file], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    environment = dict(re.findall(r"(ANABRANCH_\w+)[:=] ?(\S+)", workflow + (ROOT / "Dockerfile").read_text()))
    assert not unknown_environment(environment)
    settings = load({}, environment, None)
    (listener,) = settings.listeners
    assert (listener.host, listener.port, listener.advertised_host) == ("0.0.0.0", KAFKA_PORT, "localhost")
    assert (settings.admin.host, settings.admin.port) == ("0.0.0.0", ADMIN_PORT)
    assert set(map(int, re.findall(r"- (\d+):\1\b", workflow))) == {KAFKA_PORT, ADMIN_PORT}
