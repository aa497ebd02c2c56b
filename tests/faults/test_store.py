"""An object store that is slow, faulty, overloaded or away: clients see no error, nothing is lost or left over.

The node is a separate process, the store is a real S3 server, and the proxy between them injects each test's faults.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rig import CountingProducer, Decide, Rig, faulty_node, read_back
from tests.support.fault_proxy import PASS, Fault, Request
from tests.support.s3 import S3Bucket, S3Server, set_credentials
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

FAULTS_MIN = 4
"""Faults each kind of weather must have brought before it clears."""
DOWN = Fault(reset_before=True, reset=True)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Rig]:
    """A node that uploads all the time, in small and in multipart objects, and keeps next to nothing in memory."""
    settings = {
        "storage_upload_age_ms": 50,
        "storage_upload_bytes": "1MiB",
        "storage_log_cache_bytes": "4MiB",
        "storage_block_cache_bytes": "1MiB",
        "storage_delete_delay_ms": 0,
        "storage_gc_period_ms": 200,
        "storage_prepare_ttl_ms": 4000,
        "compaction_enabled": "false",
        "wal_capacity_bytes": "16MiB",
    }
    with pytest.MonkeyPatch.context() as patch:
        set_credentials(patch)
        with faulty_node(tmp_path_factory.mktemp("faults"), s3.new_bucket(), **settings) as running:
            yield running
            assert running.node.terminate() == 0


def one_in(count: int, fault: Fault, *methods: str) -> Decide:
    """The fault for about every so manyth request of those methods."""
    rng = random.Random(count)
    return lambda request: fault if request.method in methods and rng.randrange(count) == 0 else PASS


def bursts(*faults: Fault) -> Decide:
    """Requests pass in fives, and then five in a row do not."""
    turns, kinds = itertools.count(), itertools.cycle(faults)
    return lambda _: next(kinds) if next(turns) // 5 % 2 else PASS


def cut_bodies(request: Request) -> Fault:
    """Cut uploads and downloads in the middle."""
    if request.number % 3:
        return PASS
    if request.method == "PUT":
        return Fault(body_bytes_max=5000)
    return Fault(answer_bytes_max=5000, reset=True) if request.method == "GET" else PASS


WEATHERS = {
    "late": one_in(4, Fault(delay_ms=1500), "PUT", "GET", "POST"),
    "cut": cut_bodies,
    "overloaded": bursts(Fault(status=503, code="SlowDown"), Fault(status=500, code="InternalError")),
    "answers lost": one_in(3, Fault(lose_answer=True, reset=True), "PUT", "GET", "POST"),
}


@pytest.mark.parametrize("kind", WEATHERS)
async def test_clients_see_nothing_of_a_store_in_trouble(rig: Rig, kind: str) -> None:
    load = CountingProducer(rig.node.bootstrap, kind.replace(" ", "-"), value_bytes=2_000, pause_s=0.02)
    load.send_while(lambda: not load.acked)
    before = rig.weather.faults
    rig.weather.decide = WEATHERS[kind]
    load.send_while(lambda: rig.weather.faults < before + FAULTS_MIN)
    load.finish()
    rig.weather.clear()
    rig.node.wait_uploaded()
    await rig.expect_accounts_to_agree()
    assert rig.node.terminate() == 0
    rig.node.start()  # with empty caches
    before = rig.weather.requests["GET"]
    rig.weather.decide = WEATHERS[kind]
    read_back(rig.node.bootstrap, load)
    assert rig.weather.requests["GET"] > before, "what was read came through the weather"
    rig.weather.clear()


async def test_an_outage_slows_clients_down_and_heals_by_itself(tmp_path: Path, bucket: S3Bucket) -> None:
    with faulty_node(
        tmp_path,
        bucket,
        storage_upload_age_ms=200,
        storage_gc_period_ms=200,
        storage_delete_delay_ms=0,
        storage_prepare_ttl_ms=4000,
        compaction_enabled="false",
        wal_capacity_bytes="8MiB",
    ) as rig:
        load = CountingProducer(rig.node.bootstrap, "events", value_bytes=10_000)
        load.send_while(lambda: rig.node.status()["storage"]["uploads"] == 0)
        rig.weather.decide = lambda _: DOWN
        load.send_while(rig.writable)
        assert load.acked, "produce went on without the store"
        wait_until(lambda: rig.stands_still("events"), "the log is full")
        load.send_while(lambda: rig.weather.faults < 20)
        assert not load.errors, "a full log must not be an error for a client"
        rig.weather.clear()
        load.finish()
        rig.node.wait_uploaded()
        assert not rig.node.events("storage stopped")
        await rig.expect_accounts_to_agree()
        assert rig.node.status()["wal"]["used_bytes"] == 0
        assert rig.node.terminate() == 0
        rig.node.start()
        read_back(rig.node.bootstrap, load)
        rig.node.terminate()
