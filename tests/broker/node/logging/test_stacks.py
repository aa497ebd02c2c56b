"""SIGUSR1 prints a node's stacks, also when its loop is stuck. A stop that does not end is forced."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from anabranch.broker.node.logging.stacks import END, describe_tasks
from tests.support.node import NodeProcess

WAIT_S = 60
STUCK = """
import asyncio, sys, time
from anabranch.broker.node.logging import stacks

async def main():
    dump = stacks.install(asyncio.get_running_loop(), 2, print)
    {act}

async def held_up():
    print("ready", flush=True)
    time.sleep(3600)

asyncio.run(main())
"""


async def test_what_tasks_wait_for_is_told_from_the_outermost_call_to_the_future() -> None:
    ready = asyncio.Event()
    waiting = 0

    async def inner() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            ready.set()
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outer()) for _ in range(3)]
        await ready.wait()
        lines = describe_tasks(tasks).splitlines()
        for task in tasks:
            task.cancel()
    assert lines[0] == "3 task(s):"
    places = [line.rpartition(".")[2] for line in lines[1:-2]]
    assert places == ["outer", "inner", "wait"]
    assert lines[-2:] == ["  on FutureIter", END]


def test_a_running_node_tells(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        said = node.stacks()
        assert "Thread 0x" in said
        assert "in Membership._beat" in said
        assert said.endswith(END)
        assert node.terminate() == 0


def _run_stuck(act: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.format(act=act)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_stuck_loop_shows_where() -> None:
    process = _run_stuck("await held_up()")
    with process:
        assert process.stderr is not None
        process.send_signal(signal.SIGUSR1)
        while " in held_up" not in (line := process.stderr.readline()):
            assert line
        process.kill()


def test_a_stop_that_does_not_end_is_ended_and_shows_where() -> None:
    process = _run_stuck("stacks.exit_after(0.1, dump); await held_up()")
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert " in held_up" in said


def test_a_stop_that_does_not_end_is_ended_even_when_no_thread_starts() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1, -1))"
    with _run_stuck(f"{limit}; stacks.exit_after(0.1, dump); await held_up()") as process:
        try:
            assert process.wait(WAIT_S) in {1, -signal.SIGALRM}
        finally:
            process.kill()


def test_a_full_pipe_does_not_hold_up_the_telling() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writing, True)
    act = "stacks.exit_after(0.1, dump); await held_up()"
    try:
        process = subprocess.run(
            [sys.executable, "-c", STUCK.format(act=act)],
            check=False,
            stdout=subprocess.PIPE,
            stderr=writing,
            timeout=WAIT_S,
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert process.returncode == 1
