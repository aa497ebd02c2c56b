"""The broker for tests where what only Linux has is missing, and where nothing but the base is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.bare import FOLDER, bare_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[2]
SMOKE: Final = FOLDER / "smoke.py"
SUITE: Final = (
    "tests/anabranch/test_broker.py",
    "tests/broker/operator/cli/test_dev.py",
    # The others of its file are about pytest alone, which is the same everywhere.
    "tests/anabranch/test_plugin.py::test_broker_and_topics_are_there_without_set_up",
)
FACTS: Final = """
from anabranch import platform
assert not platform.IS_LINUX
assert not platform.O_DIRECT
assert not platform.O_DSYNC
assert not platform.MEMORY_FOLDER.exists()
"""
NO_ADMIN_PORT: Final = """
from anabranch.testing import Broker, BrokerError
with Broker() as broker:
    try:
        broker.admin_url
    except BrokerError as error:
        print(error)
"""
CONSOLE_ALONE: Final = """
from urllib.request import urlopen
from anabranch.testing import Broker
with Broker() as broker:
    pages = ("metrics", "api/v1/status", "api/v1/topics", "console/")
    print(*(urlopen(f"{broker.admin_url}/{each}", timeout=60).status for each in pages))
    print(broker.log, end="")
"""
SERVE: Final = ("serve", "--port", "0", "--admin-port", "0", "--data-dir", "data", "--wal-allow-volatile", "true")
LACKING: Final = "which is missing or too old: pip install 'anabranch"


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that this test starts lack what only Linux has, and all extras."""
    for name, value in bare_environment(extras=()).items():
        monkeypatch.setenv(name, value)


def test_the_interpreter_is_bare() -> None:
    subprocess.run([sys.executable, "-c", FACTS], env=bare_environment(), check=True)


def test_the_suite_of_the_broker_passes_in_it() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE]
    done = subprocess.run(command, cwd=ROOT, env=bare_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.usefixtures("base")
def test_the_base_serves_clients_and_loses_nothing_in_a_crash(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--noconftest", str(SMOKE)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout, "the process of the tests has all extras"


@pytest.mark.usefixtures("base")
def test_without_the_console_there_is_no_admin_port() -> None:
    done = subprocess.run([sys.executable, "-c", NO_ADMIN_PORT], capture_output=True, text=True, check=True)
    assert done.stdout == "the broker has no admin port: pip install 'anabranch[console]'\n"


def test_the_console_needs_no_other_extra() -> None:
    environment = bare_environment(extras=("console",))
    command = [sys.executable, "-c", CONSOLE_ALONE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "200 200 200 200\n", done.stdout + done.stderr


@pytest.mark.usefixtures("base")
def test_a_node_of_the_base_serves_without_it_and_says_so(tmp_path: Path) -> None:
    said = []
    command = [sys.executable, "-m", "anabranch", *SERVE]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        for line in node.stderr:
            said.append(json.loads(line)["event"])
            if said[-1] == "serving":
                node.terminate()
    assert node.returncode == 0
    assert "there is no admin port: pip install 'anabranch[console]', or set admin.enabled to false" in said


@pytest.mark.usefixtures("base")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topic", "list"], f"this command needs rich, {LACKING}[cli]'"),
        (["security", "init", "x"], f"this command needs cryptography, {LACKING}[security]'"),
        (["spark", "ingest", "x.toml"], f"a Spark job needs pyspark, {LACKING}[spark]'"),
        ([*SERVE, "--admin-enabled", "true"], f"setting admin.enabled needs aiohttp, {LACKING}[console]'"),
        (
            [*SERVE, "--objects-store", "s3", "--objects-bucket", "b"],
            f"store 's3' needs aiobotocore, {LACKING}[s3]'",
        ),
        (
            [*SERVE, "--catalog-url", "postgresql://h/d"],
            f"catalog postgresql://h/d needs psycopg, {LACKING}[postgres]'",
        ),
    ],
)
def test_a_missing_extra_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("Error")] == [f"Error: {said}"]
    assert "Traceback" not in done.stderr
