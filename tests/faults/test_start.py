"""An unusable S3 bucket: one clear line at the start. A running node waits and reports the reason."""

import shutil
import socket
from pathlib import Path

import pytest

from anabranch.broker.app import StartError
from tests.faults.rig import CountingProducer, faulty_node, read_back
from tests.support.fault_proxy import Fault
from tests.support.node import running_node
from tests.support.s3 import S3Bucket

pytestmark = pytest.mark.timeout(400)


async def why_not(tmp_path: Path, endpoint: str, bucket: str) -> str:
    """The line a node ends with that cannot start."""
    settings = {"objects_store": "s3", "objects_bucket": bucket, "objects_endpoint": endpoint}
    with pytest.raises(StartError) as refused:
        async with running_node(tmp_path, **settings):
            pass
    line = str(refused.value)
    assert "\n" not in line
    assert bucket in line
    assert endpoint in line
    return line


async def test_what_is_wrong_at_the_start_is_one_line(
    tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = "bucket must exist, and the credentials must be right"
    assert advice in await why_not(tmp_path, bucket.endpoint, "absent")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert advice in await why_not(tmp_path, bucket.endpoint, bucket.name)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # the port is taken, but not listening
        line = await why_not(tmp_path, f"http://127.0.0.1:{nobody.getsockname()[1]}", "b")
        assert "No S3 service responds there" in line


@pytest.mark.parametrize("trouble", ["no bucket", "no right"])
async def test_a_bucket_that_is_lost_while_the_node_runs_is_waited_for(
    tmp_path: Path, bucket: S3Bucket, trouble: str
) -> None:
    with faulty_node(tmp_path, bucket, storage_upload_age_ms=50, compaction_enabled="false") as rig:
        load = CountingProducer(rig.node.bootstrap, "events", value_bytes=1000, pause_s=0.02)
        load.send_while(lambda: rig.node.status()["storage"]["uploads"] == 0)
        rig.node.wait_uploaded()
        elsewhere = rig.objects.with_name("elsewhere")
        if trouble == "no bucket":
            shutil.move(rig.objects, elsewhere)
        else:
            rig.weather.decide = lambda _: Fault(status=403, code="AccessDenied")
        load.send_while(lambda: not rig.node.events("upload waits"))
        load.finish()
        expected = "NoSuchBucket" if trouble == "no bucket" else "AccessDenied"
        assert all(expected in line["reason"] for line in rig.node.events("upload waits"))
        if trouble == "no bucket":
            shutil.move(elsewhere, rig.objects)
        rig.weather.clear()
        rig.node.wait_uploaded()
        assert rig.node.terminate() == 0
        rig.node.start()
        read_back(rig.node.bootstrap, load)
        assert rig.node.terminate() == 0
