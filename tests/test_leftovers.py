"""A test that fails leaves nothing behind that fails the next one, and a JVM that is killed leaves no file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tools
from tests.support.node import NodeProcess

HOOKS = "from tests.conftest import pytest_runtest_makereport, pytest_runtest_protocol"
TESTS = '''
class Client:
    """Complains when it is collected while it is open, and is in a ring, as clients with tasks are."""

    def __init__(self):
        self.ring = self

    def __del__(self):
        raise ResourceWarning("unclosed client")


def test_fails():
    client = Client()
    assert client is None


def test_passes():
    import gc

    gc.collect()
'''


@pytest.mark.slow
def test_a_failed_test_does_not_fail_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir=.", "."]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr


JVM = """
import json, sys, tempfile
from pathlib import Path
from tests.support.kafka_tools import PRODUCER, run_tool

arguments = ["--bootstrap-server", sys.argv[1], "--topic", "t", "--compression-codec", "lz4"]
assert run_tool(PRODUCER, arguments, stdin="a record").returncode == 0
print(json.dumps([path.name for path in Path(tempfile.gettempdir()).glob("*/*.so")]))
"""


@pytest.mark.slow
def test_a_killed_jvm_leaves_nothing(tmp_path: Path) -> None:
    tools.kafka_class_path()
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    with NodeProcess(tmp_path) as node:
        done = subprocess.run(
            [sys.executable, "-c", JVM, node.bootstrap],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (library,) = json.loads(done.stdout)
    assert library.startswith("liblz4"), "it is deleted at the end of its JVM, which was killed"
    assert list(folder.iterdir()) == []
