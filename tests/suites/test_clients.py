"""The files and tests that the suites refer to exist; `make suites` runs the suites."""

import asyncio
import signal
import socket
import sys

import pytest

from tests.suites.clients import SUITES, Suite
from tests.suites.run import HERE, expected, home_of, lay_out
from tests.support.waiting import until

WAIT_S = 60


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_has_its_list_its_files_and_its_line(suite: Suite) -> None:
    assert all(test.split("::")[0].startswith(tuple(suite.folders)) for test in expected(suite))
    for name in suite.overlay.values():
        assert (HERE / "overlay" / name).is_file()
    assert f"| `{suite.name}` |" in (HERE / "README.md").read_text()
    assert (suite.repository is None) == (suite.tag is None)


def test_tests_are_laid_out_apart_from_the_clients_own_code(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    suite = SUITES[0]
    home = home_of(suite)
    (home / "source" / "test").mkdir(parents=True)
    (home / "source" / "test" / "test_it.py").touch()
    (home / "source" / "kafka").mkdir()
    for _ in range(2):  # again, over the files of an earlier run
        lay_out(suite, home)
    found = {str(path.relative_to(home / "work")) for path in (home / "work").rglob("*") if path.is_file()}
    assert found == {"test/test_it.py", *suite.overlay}


async def test_a_run_that_is_stopped_leaves_no_node_behind(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    suite = SUITES[0]
    home = home_of(suite)
    (home / "source" / "test").mkdir(parents=True)
    (home / "ready").touch()
    python = home / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # Stands for the suite's Python: a test that prints its broker's address and never ends.
    told = home / "told"
    python.write_text(f'#!/bin/sh\necho "$KAFKA_URI" >{told}.new && mv {told}.new {told}\nexec sleep 600\n')
    python.chmod(0o755)
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.suites.run", suite.name, cwd=HERE.parent.parent
    )
    try:
        await until(lambda: told.exists() or run.returncode is not None, timeout_s=WAIT_S, pause_s=0.02)
        host, port = told.read_text().strip().removeprefix("kafka://").split(":")
        socket.create_connection((host, int(port))).close()
        run.terminate()
        async with asyncio.timeout(WAIT_S):
            assert await run.wait() == 128 + signal.SIGTERM
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
