"""A test that fails leaves nothing behind that fails the next one."""

import subprocess
import sys
from pathlib import Path

import pytest

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
