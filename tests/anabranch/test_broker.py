"""The broker for tests, with real clients."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from anabranch.client.connection import Connection
from anabranch.client.errors import ClientError
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.fetch import FetchRequest
from anabranch.testing import Broker, BrokerError, Record
from tests.support.open_files import data_folder
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.slow

EARLIEST = {"auto.offset.reset": "earliest"}
ONCE = {"retries": 0, "message.timeout.ms": 600_000}


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker({"storage.upload_age_ms": 10}) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.heal()


def send(broker: Broker, topic: str, *values: bytes, **settings: object) -> list[str]:
    """Send records; return the names of the errors, empty for a success."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    outcomes: list[str] = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: outcomes.append("" if error is None else error.name())
        )
    assert producer.flush(WAIT_S) == 0
    return outcomes


def receive(broker: Broker, topic: str) -> Sequence[bytes]:
    """Return all records of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
        values.append(message.value() or b"")
    consumer.close()
    return values


def status(broker: Broker) -> dict[str, object]:
    with urlopen(f"{broker.admin_url}/api/v1/status", timeout=WAIT_S) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_it_has_a_schema_registry(broker: Broker) -> None:
    with urlopen(f"{broker.schema_registry_url}/schemas/types", timeout=WAIT_S) as answer:
        assert set(json.load(answer)) == {"AVRO", "JSON", "PROTOBUF"}


def test_clients_use_it_as_any_broker(broker: Broker) -> None:
    assert send(broker, "plain", b"a", b"b") == ["", ""]
    assert receive(broker, "plain") == [b"a", b"b"]


def test_topics_are_created_with_partitions_and_configs_and_deleted(broker: Broker) -> None:
    broker.create_topic("wide", partitions=3, configs={"retention.ms": 7000})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(admin.list_topics("wide", timeout=WAIT_S).topics["wide"].partitions) == 3
    with pytest.raises(BrokerError, match="already exists"):
        broker.create_topic("wide")
    with pytest.raises(BrokerError, match="nonsense"):
        broker.create_topic("other", configs={"nonsense": 1})
    with pytest.raises(BrokerError, match="partitions: expected a number from 1"):
        broker.create_topic("other", partitions=0)
    broker.delete_topic("wide")
    assert "wide" not in admin.list_topics(timeout=WAIT_S).topics
    with pytest.raises(BrokerError, match="there is no topic 'wide'"):
        broker.delete_topic("wide")


def test_topics_are_created_as_in_production(broker: Broker) -> None:
    wanted = NewTopic("safe", num_partitions=2, replication_factor=3, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([wanted])["safe"].result(WAIT_S)
    assert send(broker, "safe", b"x", acks="all") == [""]


def test_records_are_read_back(broker: Broker) -> None:
    broker.create_topic("read", partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("read", None, b"k", 1, timestamp=1_700_000_000_000, headers=[("h", b"\x00\xff"), ("none", None)])
    producer.produce("read", b"", None, 0, timestamp=5)
    producer.produce("read", b"\xfe", None, 0, timestamp=6)
    assert producer.flush(WAIT_S) == 0
    second = Record(1, 0, 1_700_000_000_000, b"k", None, (("h", b"\x00\xff"), ("none", None)))
    assert broker.records("read") == [Record(0, 0, 5, None, b"", ()), Record(0, 1, 6, None, b"\xfe", ()), second]
    assert broker.records("read", partition=1) == [second]
    with pytest.raises(BrokerError, match=r"there is no topic 'nothing'$"):
        broker.records("nothing")
    with pytest.raises(BrokerError, match=r"there is no topic 'raed'. Did you mean 'read'\?"):
        broker.records("raed")
    with pytest.raises(BrokerError, match=r"there is no topic 'raed'. Did you mean 'read'\?"):
        broker.delete_topic("raed")
    with pytest.raises(BrokerError, match="topic 'read' has 2 partitions, and no partition 2"):
        broker.records("read", partition=2)


def test_more_records_than_one_read_has_are_read_back(broker: Broker) -> None:
    broker.create_topic("large")
    values = [bytes([number]) * 700_000 for number in range(5)]
    assert send(broker, "large", *values) == [""] * 5
    assert [each.value for each in broker.records("large")] == values


def test_records_of_transactions_are_read_back_as_a_consumer_would(broker: Broker) -> None:
    broker.create_topic("bank")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "bank"})
    producer.init_transactions(WAIT_S)
    for value in (b"kept", b"taken back", b"kept too", b"open"):
        producer.begin_transaction()
        producer.produce("bank", value)
        assert producer.flush(WAIT_S) == 0
        if value == b"taken back":
            producer.abort_transaction(WAIT_S)
        elif value != b"open":
            producer.commit_transaction(WAIT_S)
    assert [each.value for each in broker.records("bank")] == [b"kept", b"taken back", b"kept too", b"open"]
    assert [each.value for each in broker.records("bank", committed=True)] == [b"kept", b"kept too"]
    producer.abort_transaction(WAIT_S)
    assert [each.value for each in broker.records("bank", committed=True)] == [b"kept", b"kept too"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_waiting_for_a_group(broker: Broker, protocol: str) -> None:
    topic = group = f"{protocol}-readers"
    broker.create_topic(topic, partitions=3)
    with pytest.raises(BrokerError, match=f"group '{group}' after 0 s: it does not exist"):
        broker.wait_for_group(group, timeout_s=0)
    settings = {
        "enable.auto.commit": False,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "group.protocol": protocol,
    }
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    consumer.subscribe([topic])
    assert consumer.poll(0) is None  # librdkafka joins in a thread of its own
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.wait_for_group, group, timeout_s=WAIT_S)
        while not waiting.done():
            consumer.poll(0.1)
        waiting.result()
    broker.wait_for_group(group, caught_up=True)
    assert send(broker, topic, b"x") == [""]
    with pytest.raises(BrokerError, match=r"after 0 s: Stable, 1 members, .* at None of 1"):
        broker.wait_for_group(group, caught_up=True, timeout_s=0)
    assert consumer.poll(WAIT_S) is not None
    consumer.commit(asynchronous=False)
    broker.wait_for_group(group, caught_up=True)
    consumer.close()


def test_the_next_produce_fails_and_appends_nothing(broker: Broker) -> None:
    broker.create_topic("refused")
    broker.fail_next("Produce", "INVALID_RECORD", times=2)
    assert send(broker, "refused", b"1", **ONCE) == ["INVALID_RECORD"]
    assert send(broker, "refused", b"2", **ONCE) == ["INVALID_RECORD"]
    assert send(broker, "refused", b"3", **ONCE) == [""]
    assert receive(broker, "refused") == [b"3"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_answer_can_be_lost(broker: Broker, idempotent: bool) -> None:
    topic = f"lost-{idempotent}"
    broker.create_topic(topic)
    broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", applied=True)
    assert send(broker, topic, b"x", **{"enable.idempotence": idempotent}) == [""], "the client sends it again"
    assert receive(broker, topic) == ([b"x"] if idempotent else [b"x", b"x"])


def test_bad_orders_are_refused_and_change_nothing(broker: Broker) -> None:
    with pytest.raises(BrokerError, match="unknown error code 'NONSENSE': expected a name such as NOT_LEADER_OR_FOLL"):
        broker.fail_next("Produce", "NONSENSE")
    with pytest.raises(BrokerError, match=r"unknown error code 'not_leader'. Did you mean 'NOT_LEADER_OR_FOLLOWER'"):
        broker.fail_next("Produce", "not_leader")
    with pytest.raises(BrokerError, match="NONE is no error"):
        broker.fail_next("Produce", 0)
    with pytest.raises(BrokerError, match="times: expected a number from 1"):
        broker.fail_next("Produce", "UNKNOWN_SERVER_ERROR", times=0)
    with pytest.raises(BrokerError, match="slow_store_ms: expected a number from 0"):
        broker.slow_store(-1)
    with pytest.raises(BrokerError, match=r"unknown API 'Fetsh'. Did you mean 'Fetch'\?"):
        broker.fail_next("Fetsh", "UNKNOWN_SERVER_ERROR")
    with pytest.raises(BrokerError, match="SaslHandshake has no throttle time in its answers"):
        broker.throttle_next("SaslHandshake", 1)
    assert send(broker, "unharmed", b"x", **ONCE) == [""]


def test_a_commit_fails_and_changes_nothing(broker: Broker) -> None:
    broker.create_topic("uncommitted")
    assert send(broker, "uncommitted", b"x") == [""]
    settings = {"group.id": "uncommitted", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    consumer.subscribe(["uncommitted"])
    assert consumer.poll(WAIT_S) is not None
    broker.fail_next("OffsetCommit", "OFFSET_METADATA_TOO_LARGE")
    with pytest.raises(KafkaException, match="OFFSET_METADATA_TOO_LARGE"):
        consumer.commit(asynchronous=False)
    place = TopicPartition("uncommitted", 0)
    assert consumer.committed([place], timeout=WAIT_S)[0].offset == OFFSET_INVALID
    consumer.commit(asynchronous=False)
    assert consumer.committed([place], timeout=WAIT_S)[0].offset == 1
    consumer.close()


@pytest.mark.parametrize("applied", [False, True])
def test_a_connection_is_lost_at_a_request(broker: Broker, applied: bool) -> None:
    topic = f"dropped-{applied}"
    broker.create_topic(topic)
    broker.drop_next("Produce", applied=applied)
    assert send(broker, topic, b"x") == [""], "the client sends it again"
    assert len(broker.records(topic)) == 1 + applied


def test_clients_are_cut_off_until_the_broker_heals(broker: Broker) -> None:
    broker.create_topic("cut")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.list_topics("cut", timeout=WAIT_S)
    broker.cut()
    with pytest.raises(KafkaException):
        admin.list_topics("cut", timeout=0.5)
    assert broker.records("cut") == []
    broker.heal()
    assert "cut" in admin.list_topics("cut", timeout=WAIT_S).topics


def test_records_are_served_while_the_store_hangs(broker: Broker) -> None:
    broker.create_topic("slow")
    wait_until(lambda: not pending(broker), "all is uploaded")
    broker.slow_store(600_000)
    assert send(broker, "slow", b"x") == [""]
    assert receive(broker, "slow") == [b"x"]
    assert pending(broker) > 0


def pending(broker: Broker) -> int:
    """Return the bytes that are in no object yet."""
    found = status(broker)["uncommitted_bytes"]
    assert isinstance(found, int)
    return found


def test_a_kill_loses_nothing_and_clients_find_it_again(broker: Broker) -> None:
    address = broker.bootstrap_servers
    assert send(broker, "killed", b"before") == [""]
    broker.kill()
    assert not broker.is_running
    with pytest.raises(BrokerError, match="does not run"):
        broker.slow_store(1)
    broker.start()
    assert broker.bootstrap_servers == address
    assert receive(broker, "killed") == [b"before"]
    with pytest.raises(BrokerError, match="runs already"):
        broker.start()


def test_a_paused_broker_answers_nothing_until_it_goes_on(broker: Broker) -> None:
    broker.create_topic("paused")
    broker.pause()
    with pytest.raises(BrokerError, match="is paused"):
        broker.slow_store(1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    broker.resume()
    assert "paused" in admin.list_topics(timeout=WAIT_S).topics


def test_a_broker_that_does_not_answer_in_time_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.kill

    def kill_and_resume(pid: int, number: int) -> None:
        kill(pid, number)
        kill(pid, signal.SIGCONT)

    with Broker() as broker:
        kill(broker.pid, signal.SIGSTOP)
        monkeypatch.setattr("anabranch.testing.process.ORDER_TIMEOUT_S", 0)
        monkeypatch.setattr(os, "kill", kill_and_resume)
        with pytest.raises(BrokerError, match="did not answer within 0 s") as raised:
            broker.create_topic("late")
        assert "owner.py" in str(raised.value)
        monkeypatch.undo()
        assert broker.records("late") == [], "its answer, which came late, is not that of this order"


def test_answers_that_arrive_together_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read

    def read_all(pipe: int, size: int) -> bytes:
        received = b""
        while received.count(b"\n") < 2:
            received += read(pipe, size)
        return received

    with Broker() as broker:
        with monkeypatch.context() as patched:
            patched.setattr("anabranch.testing.process.ORDER_TIMEOUT_S", 0)
            patched.setattr("anabranch.testing.process.STACKS_TIMEOUT_S", 0)
            os.kill(broker.pid, signal.SIGSTOP)
            with pytest.raises(BrokerError, match="did not answer within 0 s"):
                broker.create_topic("late")
            os.kill(broker.pid, signal.SIGCONT)
        monkeypatch.setattr(os, "read", read_all)
        broker.create_topic("second")
        monkeypatch.undo()
        assert broker.records("second") == []


@pytest.mark.parametrize("tls", [False, True])
def test_users_authenticate_themselves_also_after_a_crash(tls: bool) -> None:
    with Broker(users={"alice": "tea", "bob": "cup"}, tls=tls) as broker:
        assert broker.client_settings()["security.protocol"] == ("SASL_SSL" if tls else "SASL_PLAINTEXT")
        assert send(broker, "secret", b"1", **broker.client_settings("bob")) == [""]
        broker.kill()
        broker.start()
        for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"):
            settings = {**broker.client_settings(), "sasl.mechanism": mechanism}
            assert send(broker, "secret", b"2", **settings) == [""]
        wrong = Producer({**broker.client_settings(), "sasl.password": "cup"})
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=1)
        assert len(broker.records("secret")) == 4


def test_clients_connect_by_tls() -> None:
    with Broker(tls=True) as broker:
        settings = broker.client_settings()
        assert settings["security.protocol"] == "SSL"
        assert send(broker, "t", b"1", **settings) == [""]
        with pytest.raises(BrokerError, match="the broker has no user 'zoe'"):
            broker.client_settings("zoe")


def test_a_cluster_goes_on_without_one_of_its_nodes() -> None:
    with Broker(nodes=3) as broker:
        assert len(broker.bootstrap_servers.split(",")) == 3
        broker.create_topic("wide", partitions=6)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        found = admin.list_topics("wide", timeout=WAIT_S)
        assert {each.leader for each in found.topics["wide"].partitions.values()} == {1, 2, 3}
        sent = sorted(b"%d" % number for number in range(6))
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number, value in enumerate(sent):
            producer.produce("wide", value, partition=number)
        assert producer.flush(WAIT_S) == 0
        assert [each.value for each in broker.records("wide")] == sent
        broker.kill(2)
        assert (broker.is_running, broker.is_healthy) == (True, False)
        assert [each.value for each in broker.records("wide")] == sent, "the others lead its partitions"
        broker.heal()
        assert broker.is_healthy
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", **EARLIEST})
        consumer.subscribe(["wide"])
        assert sorted(each.value() or b"" for each in consumer.consume(6, WAIT_S)) == sent
        consumer.commit(asynchronous=False)
        broker.wait_for_group("g", caught_up=True)
        consumer.close()
        with pytest.raises(BrokerError, match="the broker has 3 nodes, and no node 4"):
            broker.kill(4)


def test_it_presents_itself_as_an_older_release() -> None:
    with Broker(kafka_version="3.6") as broker:
        host, port = broker.bootstrap_servers.split(":")
        with Connection(host, int(port)) as connection:
            assert connection.version(FetchRequest) == 15
            with pytest.raises(ClientError, match="does not serve ConsumerGroupHeartbeat"):
                connection.version(ConsumerGroupHeartbeatRequest)
        assert send(broker, "old", b"a") == [""]
    with pytest.raises(BrokerError, match=r"kafka_version: expected one of '2.0', .*, found '3.6.1'"):
        Broker(kafka_version="3.6.1")


def test_its_data_ends_with_it() -> None:
    broker = Broker()
    broker.start()
    folder, pid = data_folder(broker.pid), broker.pid
    broker.close()
    broker.close()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    with pytest.raises(
        BrokerError, match=r"^unknown setting 'topic\.num_partition'. Did you mean 'topic\.num_partitions'"
    ):
        Broker({"topic.num_partition": 3}).start()
    with pytest.raises(BrokerError, match=r"^setting topic\.num_partitions .*whole number"):
        Broker({"topic.num_partitions": "many"}).start()


PARENT = """
import sys
from anabranch.testing import Broker
broker = Broker()
broker.start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        folder = data_folder(pid)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the broker has ended")
    assert not folder.exists()
