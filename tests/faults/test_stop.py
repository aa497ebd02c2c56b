"""A stop while the object store is away: it ends by itself within its limit, and the next start has every record."""

from pathlib import Path

import pytest

from tests.faults.rig import CountingProducer, faulty_node, read_back
from tests.support.fault_proxy import Fault
from tests.support.s3 import S3Bucket, set_credentials

pytestmark = pytest.mark.timeout(400)


@pytest.mark.slow
def test_a_node_with_an_object_log_ends_by_itself(
    tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_credentials(monkeypatch)
    limits = {"drain_timeout_ms": 100, "stop_upload_timeout_ms": 100}  # leave the rest of a stop 20 s
    with faulty_node(tmp_path, bucket, wal_kind="object", **limits) as rig:
        producer = CountingProducer(rig.node.bootstrap, "kept", value_bytes=100)
        producer.send_while(lambda: not producer.acked)
        rig.weather.decide = lambda _: Fault(hang=True)
        sent = producer.sent
        producer.send_while(lambda: producer.sent == sent)  # the log cannot take these
        code = rig.node.terminate()

        assert rig.node.events("stopped"), rig.node.explain()
        assert code == 0
        rig.weather.clear()
        rig.node.start()
        producer.finish(was_away=True)
        read_back(rig.node.bootstrap, producer)
