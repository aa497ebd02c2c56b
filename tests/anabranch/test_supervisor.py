"""The parent of several nodes, with small programs in their place."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from select import PIPE_BUF
from typing import Final

import pytest

from anabranch.supervisor import INTERRUPTED, Plan
from tests.support.waiting import wait_until

NODE: Final = """
import os, select, signal, socket, sys
_, folder, behaviour, number, lifeline = sys.argv
open(f"{folder}/{number}-{os.getpid()}", "w").close()
lifeline = socket.socket(fileno=int(lifeline))
if behaviour == "fails":
    sys.exit(3)
if behaviour == "stops when told":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.signal(signal.SIGUSR1, lambda *_: os.write(2, b"stacks of %s\\n" % number.encode()))
lifeline.send(b"1")
if behaviour == "the second falls silent" and number == "0":
    while not select.select([lifeline], (), (), 0.02)[0]:
        lifeline.send(b"1")
while told := lifeline.recv(1):
    os.write(2, b"told %s that %d was killed\\n" % (number.encode(), told[0]))
if behaviour == "hangs":
    os.write(2, b"hanging\\n")
    while True:
        os.read(os.pipe()[0], 1)
"""


QUICK: Final = """
import sys
from anabranch import supervisor
supervisor.LOOKING_S = 0.2
sys.exit(supervisor.Supervisor(supervisor.Plan.of(sys.argv[1])).run())
"""
"""The supervisor, with a minute of six looks in a little more than a second."""


class Running:
    """A running supervisor, and the lines that it and its nodes write."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self._folder = folder

    def read_until(self, text: str) -> str:
        """Return the first line from here on with that text."""
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if text in line)

    def lives(self, number: int | None = None) -> Sequence[int]:
        """Return the processes of all nodes, or of the one with a number, in all its lives."""
        found = self._folder.glob("*" if number is None else f"{number}-*")
        return [int(path.name.partition("-")[2]) for path in found]


@contextmanager
def supervisor(
    folder: Path,
    behaviour: str,
    *,
    nodes: int = 2,
    kept: Sequence[int] = (),
    python: str = sys.executable,
    program: Sequence[str] = ("-m", "anabranch.supervisor"),
) -> Iterator[Running]:
    folder.mkdir(exist_ok=True)
    plan = Plan(
        command=[python, "-S", "-c", NODE, str(folder), behaviour],
        node_ids=list(range(7, 7 + nodes)),
        passed=(),
        kept=kept,
        as_json=True,
        bootstrap="localhost:9092",
    )
    command = [sys.executable, *program, plan.text()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=kept) as process:
        try:
            yield Running(process, folder)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_nodes(tmp_path: Path, number: signal.Signals) -> None:
    with supervisor(tmp_path, "serves") as running:
        said = json.loads(running.read_until("all processes serve"))
        assert (said["bootstrap"], said["nodes"]) == ("localhost:9092", "7,8")
        running.process.send_signal(number)
        assert number.name in running.read_until("stopping")
        assert running.process.wait() == 0
    assert len(running.lives()) == 2
    for pid in running.lives():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_it_lets_its_nodes_write_their_stacks(tmp_path: Path) -> None:
    with supervisor(tmp_path, "serves") as running:
        running.read_until("all processes serve")
        running.process.send_signal(signal.SIGUSR1)
        assert {running.read_until("stacks of")[-2] for _ in range(2)} == {"0", "1"}
        running.process.terminate()
        assert running.process.wait() == 0


def test_a_node_may_end_at_the_moment_of_a_stop(tmp_path: Path) -> None:
    with supervisor(tmp_path, "stops when told") as running:
        running.read_until("all processes serve")
        (first,) = running.lives(0)
        running.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(running.process.pid) == "T", "it is suspended")
        os.kill(first, signal.SIGTERM)
        wait_until(lambda: state_of(first) == "Z", "the node has ended")
        running.process.terminate()
        running.process.send_signal(signal.SIGCONT)  # now it learns of both at once
        assert running.process.wait() == 0


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_a_second_signal_kills_what_hangs(tmp_path: Path) -> None:
    with supervisor(tmp_path, "hangs") as running:
        running.read_until("all processes serve")
        running.process.terminate()
        running.read_until("hanging")
        running.read_until("hanging")
        running.process.terminate()
        running.read_until("second signal: exiting at once")
        assert running.process.wait() == INTERRUPTED
    for pid in running.lives():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_reader_of_its_log_that_hangs_does_not_keep_it_running(tmp_path: Path) -> None:
    with supervisor(tmp_path, "serves") as running:
        running.read_until("all processes serve")
        pipe = os.open(f"/proc/{running.process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(pipe, bytes(PIPE_BUF))
        os.close(pipe)
        running.process.terminate()
        assert running.process.wait() == 0


def test_a_node_that_ends_is_started_again(tmp_path: Path) -> None:
    with supervisor(tmp_path, "serves") as running:
        running.read_until("all processes serve")
        (first,) = running.lives(1)
        os.kill(first, signal.SIGKILL)
        said = running.read_until("starting it again")
        assert "the process of node 8 was killed by SIGKILL: starting it again in 1 s" in said
        assert "told 0 that 1 was killed" in running.read_until("told")
        wait_until(lambda: len(running.lives(1)) == 2, "it runs again")
        os.kill(next(each for each in running.lives(1) if each != first), signal.SIGTERM)
        said = running.read_until("starting it again")
        assert "the process of node 8 was killed by SIGTERM: starting it again in 2 s" in said
        running.process.terminate()
        assert running.process.wait() == 0


def test_a_node_that_hangs_is_killed(tmp_path: Path) -> None:
    with supervisor(tmp_path, "the second falls silent", program=("-c", QUICK)) as running:
        running.read_until("all processes serve")
        assert "the process of node 8 hangs: killing it" in running.read_until("hangs")
        assert "the process of node 8 was killed by SIGKILL" in running.read_until("starting it again")
        assert "told 0 that 1 was killed" in running.read_until("told")


def test_a_node_may_end_with_what_it_was_told_unread(tmp_path: Path) -> None:
    with supervisor(tmp_path, "serves") as running:
        running.read_until("all processes serve")
        ((suspended,), (other,)) = running.lives(0), running.lives(1)
        os.kill(suspended, signal.SIGSTOP)
        for pid, node_id in ((other, 8), (suspended, 7)):
            os.kill(pid, signal.SIGKILL)
            assert f"node {node_id} was killed by SIGKILL: starting it again" in running.read_until("starting it again")
        running.process.terminate()
        assert running.process.wait() == 0


def test_it_outlives_a_start_that_fails(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    with supervisor(tmp_path / "nodes", "serves", python=str(python)) as running:
        running.read_until("all processes serve")
        python.unlink()
        (pid,) = running.lives(1)
        os.kill(pid, signal.SIGKILL)
        said = "the process of node 8 cannot be started, No such file or directory: starting it again in 2 s"
        assert said in running.read_until("cannot be started")
        running.process.terminate()
        assert running.process.wait() == 0


def test_a_node_that_is_told_to_stop_stays_away(tmp_path: Path) -> None:
    with supervisor(tmp_path, "stops when told") as running:
        running.read_until("all processes serve")
        for number in (1, 0):
            (pid,) = running.lives(number)
            os.kill(pid, signal.SIGTERM)
            assert f"node {7 + number} has stopped: it stays away" in running.read_until("has stopped")
        assert running.process.wait() == 0, "none is left"


def test_nodes_that_never_serve_are_not_started_again(tmp_path: Path) -> None:
    with supervisor(tmp_path, "fails") as running:
        assert "ended with exit code 3 before all nodes served: stopping" in running.read_until("ended with")
        assert running.process.wait() == 1
    assert len(running.lives()) <= 2


def test_nodes_stop_when_it_is_killed_and_hold_its_lock_until_then(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        stack.enter_context(ours)
        with supervisor(tmp_path / "nodes", "serves", kept=[theirs.fileno()]) as running:
            theirs.close()
            running.read_until("all processes serve")
            running.process.kill()
            assert ours.recv(1) == b"", "the last copy of a kept descriptor is closed when the last node has ended"


def test_it_imports_little() -> None:
    program = "import anabranch.supervisor, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {each for each in loaded if each.startswith("anabranch")} == {"anabranch", "anabranch.supervisor"}
    assert not {"asyncio", "click", "logging", "structlog"} & set(loaded)
