"""The pytest plug-in, in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

USE = """
import pytest
from confluent_kafka import Producer

def send(broker, topic, code=None):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0, "message.timeout.ms": 600_000})
    outcomes = []
    producer.produce(topic, b"x", on_delivery=lambda error, message: outcomes.append((error, message.offset())))
    assert producer.flush(100) == 0
    return outcomes
"""
TESTS = (
    USE
    + """
@pytest.fixture(scope="session")
def anabranch_settings():
    return {"topic.auto_create": False}

@pytest.mark.parametrize("turn", [1, 2])
def test_topics_are_new(anabranch_broker, anabranch_topic, turn):
    assert send(anabranch_broker, anabranch_topic) == [(None, 0)]

@pytest.mark.anabranch_topic(partitions=3, configs={"max.message.bytes": 10})
def test_topics_have_the_wanted_form(anabranch_broker, anabranch_topic):
    ((error, _),) = send(anabranch_broker, anabranch_topic)
    assert error.name() == "MSG_SIZE_TOO_LARGE"

def test_that_leaves_it_killed(anabranch_broker, anabranch_topic):
    anabranch_broker.kill()

def test_that_finds_it_alive_and_leaves_a_fault(anabranch_broker):
    assert anabranch_broker.is_healthy
    anabranch_broker.fail_next("Produce", "UNKNOWN_SERVER_ERROR")
    anabranch_broker.pause()

def test_that_finds_no_fault(anabranch_broker, anabranch_topic):
    assert send(anabranch_broker, anabranch_topic) == [(None, 0)]
"""
)
SECURED = """
import pytest
from confluent_kafka import Producer

@pytest.fixture(scope="session")
def anabranch_users():
    return {"alice": "tea"}

@pytest.fixture(scope="session")
def anabranch_tls():
    return True

def test_it(anabranch_broker, anabranch_topic):
    assert anabranch_broker.client_settings()["sasl.username"] == "alice"
    Producer(anabranch_broker.client_settings()).list_topics(timeout=100)
"""
ASYNCHRONOUS = """
import asyncio
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

pytestmark = pytest.mark.asyncio

async def use(broker, topic):
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"tea")
    settings = {"group_id": topic, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, **settings) as consumer:
        assert (await consumer.getone()).value == b"tea"
        await consumer.commit()
        await asyncio.to_thread(broker.wait_for_group, topic, caught_up=True)
    assert [each.value for each in broker.records(topic)] == [b"tea"]

async def test_in_a_loop_of_its_own(anabranch_broker, anabranch_topic):
    await use(anabranch_broker, anabranch_topic)

async def test_in_another_loop(anabranch_broker, anabranch_topic):
    await use(anabranch_broker, anabranch_topic)
"""
NEW = """
import pytest

@pytest.mark.parametrize("turn", [1, 2])
def test_nothing_is_left_of_others(anabranch_new_broker, turn):
    anabranch_new_broker.create_topic("t")
    assert anabranch_new_broker.records("t") == []
"""
FAILING = """
def test_that_fails(anabranch_broker):
    anabranch_broker.kill()
    with open(f"{anabranch_broker._folder.path}/log", "a") as log:
        log.write("what the broker has said")
    assert False

def test_that_fails_without_it():
    assert False
"""
MISTYPED = """
import pytest

@pytest.mark.anabranch_topic(partitons=3)
def test_of_a_topic(anabranch_topic):
    pass

@pytest.mark.anabranch_topic(3, {"retention.ms": 5})
def test_that_gives_arguments_by_their_order(anabranch_topic):
    pass
"""
BAD_SETTINGS = """
import pytest

@pytest.fixture(scope="session")
def anabranch_settings():
    return {"topic.num_partitons": 3}

def test_it(anabranch_topic):
    pass
"""
UNUSED = """
import sys

def test_nothing_of_the_broker_is_imported():
    assert {each for each in sys.modules if each.startswith("anabranch")} == {"anabranch", "anabranch.pytest_plugin"}
"""


def run_pytest(folder: Path, tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a directory of their own."""
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_broker_and_topics_are_there_without_set_up(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, TESTS)
    assert found.returncode == 0, found.stdout
    assert "6 passed" in found.stdout


def test_users_and_tls_are_fixtures_to_override(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, SECURED)
    assert found.returncode == 0, found.stdout


def test_asynchronous_tests_use_the_same_fixtures(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, ASYNCHRONOUS)
    assert found.returncode == 0, found.stdout
    assert "2 passed" in found.stdout


def test_a_test_may_have_a_broker_of_its_own(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, NEW)
    assert found.returncode == 0, found.stdout
    assert "2 passed" in found.stdout


def test_each_worker_of_xdist_has_a_broker(tmp_path: Path) -> None:
    tests = (
        USE + "\n@pytest.mark.parametrize('turn', range(8))\ndef test_it(anabranch_broker, anabranch_topic, turn):\n"
    )
    tests += "    assert send(anabranch_broker, anabranch_topic) == [(None, 0)]\n"
    found = run_pytest(tmp_path, tests, "-n", "2", "--dist", "each")
    assert found.returncode == 0, found.stdout
    assert "16 passed" in found.stdout


def test_a_failure_shows_what_the_broker_has_said(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, FAILING)
    assert found.returncode == 1
    assert found.stdout.count("Anabranch log") == 1
    assert "what the broker has said" in found.stdout


def test_it_costs_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, UNUSED)
    assert found.returncode == 0, found.stdout


def test_what_is_mistyped_is_one_line(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, MISTYPED)
    assert found.returncode == 1
    said = "the marker anabranch_topic(partitions=1, configs=None) got an unexpected keyword argument 'partitons'"
    assert said in found.stdout.splitlines()
    assert "1 passed, 1 error" in found.stdout
    found = run_pytest(tmp_path, BAD_SETTINGS)
    said = "anabranch_broker does not start: unknown setting 'topic.num_partitons'. Did you mean 'topic.num_partitions'"
    assert any(line.startswith(said) for line in found.stdout.splitlines())
    assert "Usage" not in found.stdout
    assert "Traceback" not in found.stdout
    assert "broker.py" not in found.stdout
