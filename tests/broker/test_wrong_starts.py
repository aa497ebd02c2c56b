"""Operator mistakes at start: none may lose or mix up acknowledged data. Real processes."""

import re
import shutil
import socket
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from crc32c import crc32c

from anabranch.broker.operator.cli.wal import wal
from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC = "events"
RECORDS = 500
LONG_LEASE_MS = 600_000
"""Longer than a test runs, so that it never expires."""
WAITS = "waiting for the end of the node's lease"


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Two empty databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/right.db", f"sqlite:///{tmp_path}/wrong.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database(), server.new_database()


def produce(bootstrap: str, name: str, count: int = RECORDS) -> None:
    """Produce records with the name of their producer; all are acknowledged when this returns."""
    acked: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            errors.append(error or KafkaError(KafkaError._FAIL))  # noqa: SLF001 - the library's public name
        else:
            acked.append(offset)

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, "log_level": 0})
    for number in range(count):
        producer.produce(TOPIC, f"{name} {number}".encode(), partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not errors
    assert len(acked) == count


def consume(bootstrap: str) -> list[str]:
    """Every record of the partition, in the order of offsets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    where = TopicPartition(TOPIC, 0, 0)
    found: list[str] = []
    try:
        _, end = consumer.get_watermark_offsets(where, timeout=20)
        consumer.assign([where])
        while len(found) < end:
            messages = consumer.consume(min(1_000, end - len(found)), timeout=20)
            assert messages, f"the partition ends after {len(found)} of {end} records"
            for message in messages:
                value = message.value()
                assert isinstance(value, bytes)
                assert message.offset() == len(found)
                found.append(value.decode())
    finally:
        consumer.close()
    return found


def expected(name: str, count: int = RECORDS) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def is_untouched(url: str) -> bool:
    """True if a database has no tables (SQLite: not even a file)."""
    if url.startswith("sqlite"):
        return not Path(url.removeprefix("sqlite:///")).exists()
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
        return row.fetchone() == (0,)


# the wrong catalog


def test_an_empty_catalog_beside_a_log_is_refused_and_nothing_is_lost(tmp_path: Path, urls: tuple[str, str]) -> None:
    right, wrong = urls
    with NodeProcess(tmp_path, catalog_url=right) as node:
        produce(node.bootstrap, "first")
        node.kill9()
        line = NodeProcess(tmp_path, catalog_url=wrong).refusal()
        assert str(tmp_path / "data" / "wal") in line
        assert "catalog.url" in line
        assert is_untouched(wrong)
        node.start()
        assert consume(node.bootstrap) == expected("first")
        assert node.terminate() == 0
        # Cleanly stopped, with all in objects: an empty catalog would hide them.
        NodeProcess(tmp_path, catalog_url=wrong).refusal()
        (tmp_path / "data" / "wal").unlink()
        assert "objects" in NodeProcess(tmp_path, catalog_url=wrong).refusal()
        assert is_untouched(wrong)
        node.start()
        assert consume(node.bootstrap) == expected("first")
        assert node.terminate() == 0


def test_the_catalog_of_another_system_is_refused_and_nothing_is_lost(tmp_path: Path, urls: tuple[str, str]) -> None:
    right, wrong = urls
    with NodeProcess(tmp_path / "other", catalog_url=wrong) as other:
        produce(other.bootstrap, "other", 10)
        assert other.terminate() == 0
    with NodeProcess(tmp_path, catalog_url=right) as node:
        produce(node.bootstrap, "first")
        node.kill9()
        assert "catalog" in NodeProcess(tmp_path, catalog_url=wrong).refusal()
        store = tmp_path / "other" / "data" / "objects"  # that tells nothing against it
        line = NodeProcess(tmp_path, catalog_url=wrong, objects_path=store).refusal()
        assert f"{tmp_path / 'data' / 'wal'}: holds the WAL of catalog" in line
        node.start()
        assert consume(node.bootstrap) == expected("first")
        assert node.terminate() == 0


def test_an_older_state_of_the_catalog_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    newer, older = tmp_path / "newer.db", tmp_path / "older.db"
    catalog, objects = tmp_path / "catalog.db", tmp_path / "data" / "objects"
    with NodeProcess(tmp_path, catalog_url=f"sqlite:///{catalog}") as node:
        assert node.terminate() == 0
        shutil.copy(catalog, older)
        node.start()
        produce(node.bootstrap, "first", 100)
        node.kill9()
        move_database(catalog, newer)
        shutil.copy(older, catalog)
        objects.rename(tmp_path / "objects")  # the store's contents may show it, too
        line = node.refusal()
        assert "the catalog has never made, its next id being 1 (stream 1: 100 records, offsets 0 to 99)" in line
        assert str(tmp_path / "data" / "wal") in line
        catalog.unlink()
        move_database(newer, catalog)
        shutil.rmtree(objects)
        (tmp_path / "objects").rename(objects)
        node.start()
        assert consume(node.bootstrap) == expected("first", 100)
        assert node.terminate() == 0


def test_an_older_copy_of_the_log_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    log, older, newer = tmp_path / "data" / "wal", tmp_path / "older", tmp_path / "newer"
    with NodeProcess(tmp_path) as node:
        produce(node.bootstrap, "first", 100)
        node.kill9()
        shutil.copy(log, older)
        node.start()
        produce(node.bootstrap, "second", 100)
        node.kill9()
        log.rename(newer)
        shutil.copy(older, log)
        assert "this is an older copy of the node's log" in node.refusal()
        newer.rename(log)
        node.start()
        assert consume(node.bootstrap) == expected("first", 100) + expected("second", 100)
        assert node.terminate() == 0


@pytest.mark.parametrize("stopped", [True, False])
def test_a_store_without_the_objects_of_the_catalog_is_refused_and_nothing_is_lost(
    tmp_path: Path, *, stopped: bool
) -> None:
    with NodeProcess(tmp_path) as node:
        produce(node.bootstrap, "first", 100)
        assert node.terminate() == 0
        node.start()
        produce(node.bootstrap, "second", 100)
        if stopped:
            assert node.terminate() == 0
        else:
            node.kill9()
        line = NodeProcess(tmp_path, objects_path=tmp_path / "not-mounted").refusal()
        assert "holds nothing of cluster 'anabranch'" in line
        assert "mounted" in line
        node.start()
        assert consume(node.bootstrap) == expected("first", 100) + expected("second", 100)
        assert node.terminate() == 0


def test_the_log_of_an_older_version_takes_no_wrong_catalogs_name(tmp_path: Path, urls: tuple[str, str]) -> None:
    right, wrong = urls
    elsewhere = tmp_path / "elsewhere"  # the right store names its own catalog
    with NodeProcess(tmp_path / "other", catalog_url=wrong) as other:
        assert other.terminate() == 0
    with NodeProcess(tmp_path, catalog_url=right) as node:
        produce(node.bootstrap, "first", 100)
        node.kill9()
        log = tmp_path / "data" / "wal"
        make_version_1(log)
        before = log.read_bytes()
        line = NodeProcess(tmp_path, catalog_url=wrong, objects_path=elsewhere).refusal()
        assert "streams that the catalog has never made" in line
        assert log.read_bytes() == before
        node.start()
        assert consume(node.bootstrap) == expected("first", 100)
        assert node.terminate() == 0
        # It has the right catalog's name now.
        line = NodeProcess(tmp_path, catalog_url=wrong, objects_path=elsewhere).refusal()
        assert "holds the WAL of catalog" in line


def move_database(path: Path, target: Path) -> None:
    """Move an SQLite file, with the files that a killed process left next to it."""
    for suffix in ("", "-wal", "-shm"):
        if (found := path.with_name(path.name + suffix)).exists():
            found.rename(target.with_name(target.name + suffix))


def make_version_1(log: Path) -> None:
    """Write both copies of the header as a version would that did not name the catalog."""
    data = bytearray(log.read_bytes())
    for at in range(0, RING_POSITION, PAGE_BYTES):
        fields = data[at : at + 8] + (1).to_bytes(4, "little") + data[at + 12 : at + 168]
        data[at : at + PAGE_BYTES] = (fields + crc32c(bytes(fields)).to_bytes(4, "little")).ljust(PAGE_BYTES, b"\0")
    log.write_bytes(data)


# a node id in use


def test_a_second_process_with_the_id_of_one_that_lives_is_refused(tmp_path: Path, urls: tuple[str, str]) -> None:
    """Two replicas with the same environment: each has its own data directory, and both are node 1."""
    shared = {"catalog_url": urls[0], "objects_path": tmp_path / "objects", "catalog_lease_ms": 9_000}
    with NodeProcess(tmp_path / "1", **shared) as node:
        produce(node.bootstrap, "first", 10)
        line = NodeProcess(tmp_path / "2", **shared).refusal()
        assert f"node id 1 is held by process {node.pid} on {socket.gethostname()} at {node.bootstrap}" in line
        assert not (tmp_path / "2" / "data" / "wal").exists()
        produce(node.bootstrap, "first", 10)
        assert len(consume(node.bootstrap)) == 20
        assert node.terminate() == 0
        assert not node.events("the node refuses all writes")


def test_a_killed_node_starts_again_at_once_in_its_place(tmp_path: Path, urls: tuple[str, str]) -> None:
    with NodeProcess(tmp_path, catalog_url=urls[0], catalog_lease_ms=LONG_LEASE_MS) as node:
        produce(node.bootstrap, "first", 10)
        node.kill9()
        node.start()
        assert consume(node.bootstrap) == expected("first", 10)
        assert not node.events(WAITS)
        assert node.terminate() == 0


def test_a_killed_node_starts_elsewhere_when_its_lease_has_ended(tmp_path: Path, postgres: PostgresServer) -> None:
    shared = {
        "catalog_url": postgres.new_database(),
        "objects_path": tmp_path / "objects",
        "wal_path": tmp_path / "wal",
    }
    with NodeProcess(tmp_path / "1", catalog_lease_ms=8_000, **shared) as node:
        produce(node.bootstrap, "first", 10)
        pid = node.pid
        node.kill9()
        with NodeProcess(tmp_path / "2", catalog_lease_ms=8_000, **shared) as moved:
            assert f"process {pid} on {socket.gethostname()}" in moved.events(WAITS)[0]["holder"]
            assert consume(moved.bootstrap) == expected("first", 10)
            assert moved.terminate() == 0


def test_a_node_that_has_stopped_starts_elsewhere_at_once(tmp_path: Path, urls: tuple[str, str]) -> None:
    shared = {"catalog_url": urls[0], "objects_path": tmp_path / "objects", "catalog_lease_ms": LONG_LEASE_MS}
    with NodeProcess(tmp_path / "1", **shared) as node:
        produce(node.bootstrap, "first", 10)
        assert node.terminate() == 0
        with NodeProcess(tmp_path / "2", **shared) as moved:
            assert not moved.events(WAITS)
            assert consume(moved.bootstrap) == expected("first", 10)
            assert moved.terminate() == 0


def test_a_start_that_waits_for_a_lease_stops_at_once(tmp_path: Path) -> None:
    shared = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db", "objects_path": tmp_path / "objects"}
    with NodeProcess(tmp_path / "1", catalog_lease_ms=LONG_LEASE_MS, **shared) as node:
        waiting = NodeProcess(tmp_path / "2", catalog_lease_ms=LONG_LEASE_MS, **shared)
        waiting.spawn()
        wait_until(lambda: bool(waiting.events(WAITS)), WAITS)
        assert waiting.terminate() == 0
        assert not waiting.events("serving")
        assert node.terminate() == 0


# a log that is gone


def give_up(node: NodeProcess, **settings: object) -> Result:
    variables = {f"ANABRANCH_{name.upper()}": str(value) for name, value in settings.items()}
    return CliRunner().invoke(wal, ["give-up", "--data-dir", str(node.data_dir), "--yes"], env=variables)


def test_a_lost_log_is_not_replaced_in_silence(tmp_path: Path, urls: tuple[str, str]) -> None:
    log, aside = tmp_path / "data" / "wal", tmp_path / "aside"
    with NodeProcess(tmp_path, catalog_url=urls[0]) as node:
        produce(node.bootstrap, "first", 100)
        assert node.terminate() == 0
        node.start()
        produce(node.bootstrap, "first", 50)
        node.kill9()
        log.rename(aside)
        line = node.refusal()
        assert f"{log} is missing" in line
        assert "the newest of 1 partitions may be only there" in line
        assert "anabranch wal give-up" in line
        assert not log.exists(), "it would look like the log the next time"
        # A blank one is not that log either.
        log.write_bytes(bytes(8 << 20))
        assert f"{log} is blank" in node.refusal()
        log.unlink()
        aside.rename(log)
        node.start()
        assert len(consume(node.bootstrap)) == 150, "nothing was lost by the attempts"
        node.kill9()

        # The log is lost: the operator accepts the loss, which is reported with its offsets and cannot be undone.
        log.rename(aside)
        given_up = give_up(node, catalog_url=urls[0])
        assert given_up.exit_code == 0, given_up.output
        assert re.search(rf"{TOPIC}-0 +100\b", given_up.output)
        assert "from_offset=100" in given_up.output
        node.start()
        assert consume(node.bootstrap) == expected("first", 100)
        produce(node.bootstrap, "second", 20)
        node.kill9()
        log.rename(tmp_path / "second")
        aside.rename(log)
        assert "was given up" in node.refusal()
        assert "was given up" in node.refusal(), "and so it stays"
        log.unlink()
        (tmp_path / "second").rename(log)
        node.start()
        assert consume(node.bootstrap) == expected("first", 100) + expected("second", 20)
        assert node.terminate() == 0


def test_a_log_that_can_hold_nothing_may_go(tmp_path: Path) -> None:
    log = tmp_path / "data" / "wal"
    with NodeProcess(tmp_path) as node:
        node.kill9()
        log.unlink()  # there is no topic yet
        node.start()
        produce(node.bootstrap, "first", 10)
        assert node.terminate() == 0
        log.unlink()  # all is in objects
        node.start()
        assert consume(node.bootstrap) == expected("first", 10)
        assert node.terminate() == 0


def test_a_log_may_move(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        produce(node.bootstrap, "first", 10)
        node.kill9()
        (tmp_path / "data" / "wal").rename(tmp_path / "moved")
        with NodeProcess(tmp_path, wal_path=tmp_path / "moved") as moved:
            assert consume(moved.bootstrap) == expected("first", 10)
            assert moved.terminate() == 0


@pytest.mark.parametrize("damaged", [True, False])
def test_the_setting_to_format_destroys_no_log_that_may_hold_records(tmp_path: Path, *, damaged: bool) -> None:
    """Neither one that cannot be read, nor one that a mistyped catalog does not know."""
    log, aside = tmp_path / "data" / "wal", tmp_path / "aside"
    with NodeProcess(tmp_path) as node:
        produce(node.bootstrap, "first", 10)
        node.kill9()
        shutil.copy(log, aside)
        wrong = f"sqlite:///{tmp_path}/wrong.db"
        if damaged:
            with log.open("r+b") as file:
                file.seek(100)
                file.write(b"damage")
                file.seek(PAGE_BYTES + 100)
                file.write(b"damage")
            before = log.read_bytes()
            line = NodeProcess(tmp_path, wal_format="true").refusal()
            assert "both copies of the WAL header are damaged" in line
            assert "anabranch wal give-up" in line
            assert "is empty or missing" in NodeProcess(tmp_path, wal_format="true", catalog_url=wrong).refusal()
        else:
            before = log.read_bytes()
            assert "is empty or missing" in NodeProcess(tmp_path, wal_format="true", catalog_url=wrong).refusal()
            with NodeProcess(tmp_path / "other", catalog_url=wrong) as other:
                assert other.terminate() == 0
            elsewhere = tmp_path / "elsewhere"  # the right store names its own catalog
            line = NodeProcess(tmp_path, wal_format="true", catalog_url=wrong, objects_path=elsewhere).refusal()
            assert "not formatted: it holds a log of this node" in line
        assert log.read_bytes() == before
        aside.rename(log)
        node.start()
        assert consume(node.bootstrap) == expected("first", 10)
        assert node.terminate() == 0


# giving up


def test_only_a_log_that_is_gone_is_given_up(tmp_path: Path, urls: tuple[str, str]) -> None:
    log, aside = tmp_path / "data" / "wal", tmp_path / "aside"
    url = urls[0]
    with NodeProcess(tmp_path, catalog_url=url, catalog_lease_ms=9_000) as node:
        assert "in use by another process" in give_up(node, catalog_url=url).output
        produce(node.bootstrap, "first", 10)
        # To another machine, the node appears to be running.
        elsewhere = NodeProcess(tmp_path / "elsewhere")
        refused = give_up(elsewhere, catalog_url=url, catalog_lease_ms=9_000)
        assert f"node id 1 is held by process {node.pid}" in refused.output
        node.kill9()
        assert "the log exists: start the node" in give_up(node, catalog_url=url).output
        log.rename(aside)
        assert "there is nothing in the catalog" in give_up(node, catalog_url=urls[1]).output
        asked = CliRunner().invoke(
            wal, ["give-up", "--data-dir", str(node.data_dir)], env={"ANABRANCH_CATALOG_URL": url}, input="n\n"
        )
        assert asked.exit_code == 1
        assert "Accept the loss?" in asked.output
        aside.rename(log)
        node.start()
        assert consume(node.bootstrap) == expected("first", 10), "nothing was given up"
        assert node.terminate() == 0
        refused = give_up(node, catalog_url=url)
        assert refused.exit_code == 1
        assert "has no log that may hold records" in refused.output
