"""An object store that refuses the log: clients are told to try again, and what they send again is not multiplied."""

import urllib.error
from collections import Counter
from http import HTTPStatus
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, Message, Producer

from anabranch.broker.operator.cli import main
from tests.faults.rig import CountingProducer, Rig, faulty_node, read_back
from tests.support.events import committed_records, create_topic
from tests.support.fault_proxy import PASS, Fault, Request
from tests.support.s3 import S3Bucket, set_credentials
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(400)

RECORDS = 100
ATTEMPTS_MIN = 4
"""Times that each record is sent, because its time was over, before the log can be written again."""
DENIED = Fault(status=403, code="AccessDenied")


class ImpatientProducer:
    """An idempotent producer whose application sends each record again that was not delivered in a second."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.attempts: Counter[str] = Counter()
        self.acked: set[str] = set()
        self._settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 10,
            "log_level": 0,
        }
        self._producer = Producer({**self._settings, "request.timeout.ms": 700, "message.timeout.ms": 1000})
        for number in range(RECORDS):
            self._send(f"{number}")

    def become_patient(self) -> None:
        """Send each record once more, and wait: an ack that takes a second must not let it be sent again."""
        impatient, self._producer = self._producer, Producer(self._settings)
        assert impatient.flush(WAIT_S) == 0

    def _send(self, value: str) -> None:
        self.attempts[value] += 1
        self._producer.produce(self.topic, value, partition=0, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = (message.value() or b"").decode()
        if error is None:
            self.acked.add(value)
        else:
            self._send(value)

    def poll(self) -> bool:
        """Serve callbacks; return whether all records are delivered."""
        self._producer.poll(0.05)
        return len(self.acked) == RECORDS


def is_ready(rig: Rig) -> bool:
    try:
        return rig.node.ask("/health/ready") == b"ok\n"
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return False


def denies_logs(request: Request) -> Fault:
    return DENIED if request.method == "PUT" and "/wal/" in request.target else PASS


def test_a_refused_log_multiplies_nothing(tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)
    with faulty_node(tmp_path, bucket, wal_kind="object", wal_stall_ms=200) as rig:
        patient = CountingProducer(rig.node.bootstrap, "patient", value_bytes=100)
        patient.send_while(lambda: not patient.acked)
        create_topic(rig.node.bootstrap, "impatient", 1)
        assert is_ready(rig)
        rig.weather.decide = denies_logs
        impatient = ImpatientProducer(rig.node.bootstrap, "impatient")
        patient.send_while(lambda: not impatient.poll() and min(impatient.attempts.values()) < ATTEMPTS_MIN)
        assert not is_ready(rig)
        shown = CliRunner().invoke(main, ["cluster", "status", "-b", rig.node.bootstrap])
        assert "node 1 takes no records: the log has not acknowledged an append for" in " ".join(shown.stdout.split())
        impatient.become_patient()
        assert not impatient.acked
        rig.weather.clear()
        wait_until(impatient.poll, "records are delivered")
        patient.finish()
        wait_until(lambda: is_ready(rig), "the node is ready again")

        read_back(rig.node.bootstrap, patient)
        stored = Counter((value or b"").decode() for _, _, value in committed_records(rig.node.bootstrap, "impatient"))
        assert set(stored) == impatient.acked
        assert max(stored.values()) <= 2, "one from before the node knew of the stall, and one from after its end"
        assert rig.node.events("the log acknowledges again: appends are taken")
        assert rig.node.terminate() == 0
