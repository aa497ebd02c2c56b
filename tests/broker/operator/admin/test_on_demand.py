"""The admin port whose server is loaded at its first connection."""

import asyncio
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.testing import Broker
from tests.support.node import running_node
from tests.support.waiting import WAIT_S


def ask(url: str) -> int:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        assert answer.read()
        return int(answer.status)


def ask_raw(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=WAIT_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        if not connection.recv(1):
            raise ConnectionResetError


async def test_first_and_later_requests_are_answered(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_on_demand="true") as node:
        url = f"http://{node.ports.admin_address}"
        assert node.ports.console_url == f"{url}/console/"
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(asyncio.to_thread(ask, f"{url}/metrics")) for _ in range(3)]
        assert [each.result() for each in asked] == [200] * 3
        assert await asyncio.to_thread(ask, f"{url}/api/v1/status") == 200
        host, _, port = node.ports.admin_address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


async def test_a_node_stops_that_nobody_has_asked(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_on_demand="true") as node:
        host, _, port = node.ports.admin_address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


async def test_a_connection_ends_for_which_the_server_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anabranch.broker.operator.admin.http", None)
    monkeypatch.setattr("anabranch.extras._EXTRA_OF", {"anabranch": "console"})
    async with running_node(tmp_path, admin_on_demand="true") as node:
        host, _, port = node.ports.admin_address.rpartition(":")
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(ask_raw, host, int(port))


async def test_a_connection_ends_when_loading_the_server_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AttributeError("module 'aiohttp.web' has no attribute 'RequestKey'")

    monkeypatch.setattr("anabranch.broker.app._admin_server", fail)
    with capture_logs() as logged:
        async with running_node(tmp_path, admin_on_demand="true") as node:
            host, _, port = node.ports.admin_address.rpartition(":")
            with pytest.raises(ConnectionError):
                await asyncio.to_thread(ask_raw, host, int(port))
    assert [each["event"] for each in logged if each["log_level"] == "error"] == ["the admin port cannot be served"]


@pytest.mark.slow
def test_a_test_broker_loads_no_http_server_before_it_is_asked() -> None:
    with Broker() as broker:
        maps = Path(f"/proc/{broker.pid}/maps")
        assert "/aiohttp/" not in maps.read_text()
        assert ask(f"{broker.admin_url}/metrics") == 200
        assert "/aiohttp/" in maps.read_text()
