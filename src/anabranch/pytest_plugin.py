"""The pytest plug-in: a broker for the tests of a session, and topics for single tests.

    def test_orders(anabranch_broker, anabranch_topic):
        producer = Producer({"bootstrap.servers": anabranch_broker.bootstrap_servers})
        producer.produce(anabranch_topic, b"tea")

The broker starts with the first test that wants it. With pytest-xdist each worker has its own. What one test does to it
(`pause`, `kill`, faults) ends with that test.

It is loaded in every run of pytest in its environment. One without the fixtures must not pay for them, so what they
need is imported when they are asked for.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from anabranch.testing import Broker

NAME_LENGTH_MAX = 200
_SHAPE: Final = Signature(
    [
        Parameter("partitions", Parameter.POSITIONAL_OR_KEYWORD, default=1),
        Parameter("configs", Parameter.POSITIONAL_OR_KEYWORD, default=None),
    ]
)
"""Arguments of the marker."""
MARKER: Final = f"anabranch_topic{_SHAPE}: partitions and configs of the topic of the fixture anabranch_topic"
_broker = pytest.StashKey["Broker"]()


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def anabranch_settings() -> Mapping[str, object]:
    """Settings of the broker by name; override the fixture to change them (`{"topic.auto_create": False}`)."""
    return {}


@pytest.fixture(scope="session")
def anabranch_users() -> Mapping[str, str]:
    """Passwords of the broker's users by name; override the fixture to have some."""
    return {}


@pytest.fixture(scope="session")
def anabranch_tls() -> bool:
    """Choice of TLS for the connections of clients; override the fixture for True."""
    return False


@pytest.fixture(scope="session")
def anabranch_broker(
    anabranch_settings: Mapping[str, object],
    anabranch_users: Mapping[str, str],
    anabranch_tls: bool,  # noqa: FBT001 - pytest passes fixtures by name
    pytestconfig: pytest.Config,
) -> "Iterator[Broker]":
    """A broker (`anabranch.testing.Broker`) for all tests of the session."""
    with _running("anabranch_broker", anabranch_settings, anabranch_users, tls=anabranch_tls) as broker:
        pytestconfig.stash[_broker] = broker
        try:
            yield broker
        finally:
            del pytestconfig.stash[_broker]


@pytest.fixture
def anabranch_new_broker(
    anabranch_settings: Mapping[str, object],
    anabranch_users: Mapping[str, str],
    anabranch_tls: bool,  # noqa: FBT001 - as above
) -> "Iterator[Broker]":
    """A broker for one test, which has nothing of others: no topics, groups, transactions."""
    with _running("anabranch_new_broker", anabranch_settings, anabranch_users, tls=anabranch_tls) as broker:
        yield broker


@contextmanager
def _running(
    fixture: str, settings: Mapping[str, object], users: Mapping[str, str], *, tls: bool
) -> "Generator[Broker, None, None]":
    from anabranch.testing import Broker, BrokerError

    broker = Broker(settings, users=users, tls=tls)
    try:
        broker.start()
    except BrokerError as error:
        pytest.fail(f"{fixture} does not start: {error}", pytrace=False)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def anabranch_topic(request: pytest.FixtureRequest, anabranch_broker: "Broker") -> Iterator[str]:
    """Name of a new topic, which ends with the test. `@pytest.mark.anabranch_topic(partitions=3)` shapes it."""
    marker = request.node.get_closest_marker("anabranch_topic")
    try:
        wanted = {} if marker is None else _SHAPE.bind(*marker.args, **marker.kwargs).arguments
    except TypeError as error:
        pytest.fail(f"the marker anabranch_topic{_SHAPE} {error}", pytrace=False)
    name = _unique(request.node.nodeid)
    anabranch_broker.create_topic(name, **wanted)
    yield name
    anabranch_broker.heal()
    anabranch_broker.delete_topic(name)


def _unique(node_id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", node_id)[-NAME_LENGTH_MAX:].strip("-.")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the faults of a test."""
    broker = item.config.stash.get(_broker, None)
    if broker is not None and not broker.is_healthy:
        broker.heal()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the broker has said beside a test that fails."""
    report = yield
    broker = item.config.stash.get(_broker, None)
    if report.failed and broker is not None and "anabranch_broker" in getattr(item, "fixturenames", ()):
        said = broker.log.strip()
        if said:
            report.sections.append(("Anabranch log", said))
    return report
