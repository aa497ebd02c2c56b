"""`anabranch dev`, as a user runs it."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from anabranch.broker.operator.cli import main
from anabranch.broker.operator.dev import folder as folders
from anabranch.broker.operator.dev.folder import LEFT_S, LOCK, PREFIX, MemoryFolder
from anabranch.platform import MEMORY_FOLDER
from tests.support.open_files import data_folder
from tests.support.waiting import WAIT_S


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the file system in memory."""
    monkeypatch.setattr(folders, "MEMORY_FOLDER", tmp_path)
    monkeypatch.setattr(folders, "ROOM_BYTES", 0)
    return tmp_path


def test_it_serves_until_ctrl_c_and_leaves_nothing() -> None:
    command = [
        sys.executable,
        "-m",
        "anabranch",
        "dev",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--topic",
        "a:3",
        "--topic",
        "b",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        servers = node.stdout.readline().removeprefix("Kafka").strip()
        admin = node.stdout.readline().removeprefix("admin port").strip()
        assert admin.startswith("http://127.0.0.1:")
        console = node.stdout.readline().removeprefix("console").strip()
        assert console == f"{admin}/console/"
        with urllib.request.urlopen(console, timeout=WAIT_S) as page:
            assert b"Anabranch" in page.read()
        place = node.stdout.readline()
        topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=WAIT_S).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"a": 3, "b": 1}
        data = data_folder(node.pid)
        assert (data.parent == MEMORY_FOLDER) == (place == "data       in memory\n")
        node.send_signal(signal.SIGINT)
    assert node.returncode == 0
    assert not data.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "a:0"], "expected NAME or NAME:PARTITIONS, found 'a:0'"),
        (["--topic", "a b"], "Topic name is invalid: 'a b'"),
        (["--set", "topic.num_partitions"], "expected AREA.NAME=VALUE, found 'topic.num_partitions'"),
        (
            ["--set", "topic.num_partition=3"],
            "Error: unknown setting 'topic.num_partition'. Did you mean 'topic.num_partitions",
        ),
        (["--set", "x=3"], "Error: unknown setting 'x'; `anabranch serve --help` lists them"),
        (["--set", "wal.capacity_bytes=1"], "setting wal.capacity_bytes"),
    ],
)
def test_bad_options_are_refused_in_one_line(memory: Path, arguments: list[str], said: str) -> None:
    found = CliRunner().invoke(main, ["dev", *arguments])
    assert found.exit_code == 2
    assert said in found.output.splitlines()[-1]
    assert not list(memory.iterdir())


def test_folders_of_killed_processes_are_removed_and_no_others(memory: Path) -> None:
    def made(name: str, *, age_s: float, locked: bool = True) -> Path:
        path = memory / name
        path.mkdir()
        if locked:
            (path / LOCK).touch()
        now_s = memory.stat().st_mtime
        os.utime(path, (now_s - age_s, now_s - age_s))
        return path

    living = MemoryFolder()
    old = living.path.stat().st_mtime - 2 * LEFT_S
    os.utime(living.path, (old, old))
    left = made(f"{PREFIX}left", age_s=2 * LEFT_S)
    half_made = made(f"{PREFIX}half", age_s=2 * LEFT_S, locked=False)
    young = made(f"{PREFIX}young", age_s=0)
    other = made("other", age_s=2 * LEFT_S)
    new = MemoryFolder()
    assert set(memory.iterdir()) == {living.path, young, other, new.path}
    assert not left.exists()
    assert not half_made.exists()
    assert new.is_in_memory
    new.remove()
    new.remove()
    living.remove()
    assert set(memory.iterdir()) == {young, other}


def test_a_small_memory_is_not_used(
    memory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("disk")
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    monkeypatch.setattr(folders, "ROOM_BYTES", 1 << 62)
    place = MemoryFolder()
    assert place.path.parent == elsewhere
    assert not place.is_in_memory
    assert not list(memory.iterdir())
    place.remove()
