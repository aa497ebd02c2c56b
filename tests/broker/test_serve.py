"""A whole node with a real client: produced records can be read, before and after a stop."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.lab.processes import free_port
from tests.support.metrics import Samples
from tests.support.node import STOP_TIMEOUT_S, NodeProcess, running_node
from tests.support.seccomp import without_io_uring

pytestmark = pytest.mark.slow


async def _produce(bootstrap: str, topic: str, values: list[bytes]) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        waiting = [await producer.send(topic, value) for value in values]
        return [(await each).offset for each in waiting]
    finally:
        await producer.stop()


async def _consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(20):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_records_come_back_in_order_and_survive_a_clean_restart(tmp_path: Path) -> None:
    values = [b"%d" % at for at in range(500)]
    async with running_node(tmp_path) as node:
        assert await _produce(node.bootstrap, "events", values) == list(range(500))
        assert await _consume(node.bootstrap, "events", 500) == values
    async with running_node(tmp_path) as node:
        assert node.serving.storage.stats.recovered_records == 0, "a clean stop leaves nothing to recover"
        assert await _consume(node.bootstrap, "events", 500) == values
        assert node.stores["local"].calls.get > 0, "the records came from objects"


async def test_a_killed_process_has_everything_it_acked(tmp_path: Path) -> None:
    values = [b"%d" % at for at in range(200)]
    with NodeProcess(tmp_path) as node:
        await _produce(node.bootstrap, "events", values)
        node.kill9()
        node.start()
        assert await _consume(node.bootstrap, "events", 200) == values
        assert node.terminate() == 0
        assert node.events("stopped")[0]["wal_used_bytes"] == 0
        node.start()
        assert await _consume(node.bootstrap, "events", 200) == values


async def test_a_node_serves_where_io_uring_is_forbidden_and_says_so(tmp_path: Path) -> None:
    values = [b"%d" % at for at in range(200)]
    node = NodeProcess(tmp_path)
    node.new_interpreter = True
    with contextlib.ExitStack() as stack:
        stack.push(node)
        without_io_uring(node.start)
        (said,) = node.events("threads write the log, not io_uring")
        assert "seccomp" in str(said["reason"])
        assert "threads (the kernel refuses io_uring" in str(node.events("serving")[0]["wal"])
        await _produce(node.bootstrap, "events", values)
        node.kill9()
        node.new_interpreter = False
        node.start()  # with io_uring, where this machine allows it: the log is the same
        assert await _consume(node.bootstrap, "events", 200) == values
        assert node.terminate() == 0


def test_a_node_that_must_use_io_uring_does_not_start_where_it_is_forbidden(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, wal_engine="io_uring")
    node.new_interpreter = True
    refusal = without_io_uring(node.refusal)
    assert "wal.engine is io_uring, but the kernel refuses io_uring: Operation not permitted" in refusal
    assert "set wal.engine to auto or threads" in refusal


def test_a_node_that_is_stopped_as_soon_as_it_serves_stops_cleanly(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        for times in (1, 2, 3):
            assert node.terminate() == 0
            assert len(node.events("stopped")) == times
            node.start()
        assert node.terminate() == 0


async def test_a_stop_ends_while_the_store_takes_nothing_and_the_log_keeps_it_all(tmp_path: Path) -> None:
    values = [b"%d" % at for at in range(200)]
    with NodeProcess(tmp_path, stop_upload_timeout_ms=500) as node:
        await _produce(node.bootstrap, "events", values)
        objects = tmp_path / "data" / "objects"
        objects.rename(tmp_path / "aside")  # at once: the node may be writing a manifest
        objects.write_text("in the way")
        assert node.terminate() == 0
        assert [line for line in node.lines if "the log keeps the rest for the next start" in line]
        objects.unlink()
        node.start()
        assert await _consume(node.bootstrap, "events", 200) == values
        assert node.terminate() == 0
        assert node.events("stopped")[-1]["wal_used_bytes"] == 0


@pytest.mark.parametrize("gone", [True, False])
def test_a_node_stops_although_nobody_reads_its_log(tmp_path: Path, *, gone: bool) -> None:
    """Its reader has died, or is stuck with the pipe full."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "anabranch", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--port", "0", "--admin-port", "0", "--wal-capacity-bytes", "8MiB", "--log-format", "json"]
    command += ["--wal-allow-volatile", "true"]
    with os.fdopen(reading, "rb") as said, subprocess.Popen(command, stderr=writing) as process:
        try:
            while b'"event": "serving"' not in (line := said.readline()):
                assert line
            if gone:
                said.close()
            else:
                os.set_blocking(writing, False)
                with contextlib.suppress(BlockingIOError):
                    while os.write(writing, b"x" * 65536):
                        pass
                os.set_blocking(writing, True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_TIMEOUT_S) == 0
        finally:
            process.kill()
            os.close(writing)


def test_a_node_that_waits_for_its_store_at_the_start_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        node = NodeProcess(tmp_path, objects_store="s3", objects_bucket="b", objects_endpoint=endpoint)
        node.spawn()
        with silent.accept()[0]:
            assert node.terminate() == 0
    assert not node.events("serving")


def test_clients_of_the_admin_port_that_neither_ask_nor_read_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        host, port = node.admin.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as deaf:
            silent.sendall(b"GET /sta")
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert node.status()  # accepted after the others
            assert node.terminate() == 0
        assert not [line for line in node.lines if "Traceback" in line]


@pytest.mark.parametrize(("endpoint", "code"), [("foo", 2), ("http://fo o", 1)])
def test_an_s3_endpoint_that_is_none_is_one_line(tmp_path: Path, endpoint: str, code: int) -> None:
    node = NodeProcess(tmp_path, objects_store="s3", objects_bucket="b", objects_endpoint=endpoint)
    node.spawn()
    assert node.wait() == code
    said = [line for line in node.lines if not line.startswith("{")]
    assert len(said) == 1
    assert endpoint in said[0]
    assert "http://" in said[0]


async def test_a_second_process_is_kept_out_of_the_data_directory(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        other = NodeProcess(tmp_path, port=0)
        other.spawn()
        assert other.wait() == 1
        assert len(other.lines) == 1
        assert f"in use by another process (pid {node.pid})" in other.lines[0]


def test_a_bad_setting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, wal_durability="hope")
    node.spawn()
    assert node.wait() == 2
    expected = (
        "Error: setting wal.durability from flag --wal-durability: 'hope' is not allowed: "
        "should be 'auto', 'flush' or 'direct'"
    )
    assert node.lines == [expected]


def test_status_and_metrics_are_served(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        shown = Samples(node.ask("/metrics"))
        assert shown.value("anabranch_wal_capacity_bytes") == 8380416, "8 MiB less the two copies of the header"
        assert node.status()["node"]["writable"]


def test_one_port_for_kafka_and_admin_is_refused_as_a_bad_setting(tmp_path: Path) -> None:
    port = free_port()
    node = NodeProcess(tmp_path, port=port, admin_port=port, admin_host="0.0.0.0")
    node.spawn()
    assert node.wait() == 2
    assert len(node.lines) == 1
    assert f"setting admin.port: {port}" in node.lines[0]
    assert not (tmp_path / "data").exists()


def test_a_variable_that_names_no_setting_is_refused_as_a_bad_setting(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", "serve", "--data-dir", str(tmp_path / "data")],
        env={**os.environ, "ANABRANCH_WAL_CAPACITY": "64MiB"},
        capture_output=True,
        text=True,
        check=False,
        timeout=STOP_TIMEOUT_S,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        (
            "Error: environment variable ANABRANCH_WAL_CAPACITY: no setting has this name; the nearest is "
            "ANABRANCH_WAL_CAPACITY_BYTES"
        )
    ]
    assert not (tmp_path / "data").exists()
