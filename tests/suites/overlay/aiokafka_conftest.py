"""Replaces aiokafka's conftest.py, which starts a broker in a container: here one runs already.

Features that the container would set up (ACLs, Kerberos, SCRAM users, certificates) are missing; tests that need them
are left out.
"""

import asyncio
import gc
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "ssl: wants certificates")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need authentication."""
    for item in items:
        if item.get_closest_marker("ssl") or "sasl" in item.nodeid or "acl" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="wants a broker with authentication"))


@pytest.fixture(scope="session")
def kafka_server() -> SimpleNamespace:
    """The broker that runs."""
    host, port = os.environ["SUITE_BROKER"].split(":")
    return SimpleNamespace(host=host, port=int(port), hosts=[f"{host}:{port}"], container=None)


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for a class of tests."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    gc.collect()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="class")
def setup_test_class_serverless(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    """Give a class its loop."""
    assert request.cls is not None
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(
    request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop, kafka_server: SimpleNamespace
) -> None:
    """Give a class its loop and its broker."""
    assert request.cls is not None
    cls = request.cls
    cls.loop = loop
    cls.kafka_host, cls.kafka_port, cls.hosts = kafka_server.host, kafka_server.port, kafka_server.hosts
    cls.kafka_ssl_port = cls.kafka_sasl_plain_port = cls.kafka_sasl_ssl_port = None
    cls.ssl_folder = cls.acl_manager = cls.kerberos_utils = cls.kafka_config = None
    cls.kafka_version = "4.3.1"
