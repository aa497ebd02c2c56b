"""`anabranch console`: the address of the page, in a browser where it is wanted."""

import subprocess
import sys
from asyncio import to_thread
from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.broker.operator.cli.admin_port import AdminPort
from anabranch.broker.operator.cli.console import console
from benchmarks.lab.processes import free_port
from tests.support.node import NodeProcess, running_node
from tests.support.waiting import WAIT_S


def test_a_node_names_its_console_when_it_serves(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        (serving,) = node.events("serving")
        assert serving["console"] == f"http://{node.admin}/console/"


async def test_it_prints_the_address_and_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_it(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", open_it)
    async with running_node(tmp_path, admin_read_token="r" * 20) as node:  # the page itself asks for the token
        url = f"http://{node.ports.admin_address}/console/"
        for more, expected in ((["--no-browser"], []), ([], [url])):
            result = await to_thread(CliRunner().invoke, console, ["--admin", node.ports.admin_address, *more])
            assert (result.exit_code, result.output) == (0, f"{url}\n")
            assert opened == expected


async def test_a_machine_without_a_browser_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webbrowser._tryorder", [])  # which is what it finds on such a machine
    async with running_node(tmp_path) as node:
        result = await to_thread(CliRunner().invoke, console, ["--admin", node.ports.admin_address])
    assert (result.exit_code, result.stdout) == (0, f"http://{node.ports.admin_address}/console/\n")
    assert result.stderr == "no browser was found here: open the address in one that reaches this machine\n"


def test_a_node_that_does_not_answer_is_one_line() -> None:
    result = CliRunner().invoke(console, ["--admin", "127.0.0.1:1", "--wait", "0"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: cannot reach the admin port 127.0.0.1:1: Connection refused")


def test_a_node_that_is_starting_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    options = ["console", "--admin", f"127.0.0.1:{port}", "--no-browser", "--wait", str(WAIT_S)]
    command = [sys.executable, "-m", "anabranch", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == (
            f"nothing answers at 127.0.0.1:{port} yet: waiting {WAIT_S} s for a node that is starting\n"
        )
        with NodeProcess(tmp_path, admin_port=port):
            stdout, stderr = waiting.communicate(timeout=WAIT_S)
    assert (waiting.returncode, stdout, stderr) == (0, f"http://127.0.0.1:{port}/console/\n", "")


def test_an_address_of_version_6_is_bracketed() -> None:
    assert AdminPort("::1", 9644).url == "http://[::1]:9644"
