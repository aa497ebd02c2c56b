"""The stores under test: one real S3 server for the session, a fresh prefix of keys for each test."""

import itertools
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from s3stream.store.interface import ObjectStore
from s3stream.store.local import LocalStore
from s3stream.store.memory import MemoryStore
from s3stream.store.s3 import S3Settings, S3Store
from tests.support.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3server")) as running:
        yield running


def s3_settings(server: S3Server) -> S3Settings:
    return S3Settings(
        bucket=server.bucket,
        endpoint=server.endpoint,
        region=server.region,
        access_key=server.access_key,
        secret_key=server.secret_key,
        backoff_ms_min=1,
        backoff_ms_max=10,
    )


@pytest.fixture(params=["memory", "local", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    clock = itertools.count(1_700_000_000_000)
    made: ObjectStore
    if request.param == "memory":
        made = MemoryStore("memory", now_ms=lambda: next(clock))
    elif request.param == "local":
        made = LocalStore("local", tmp_path / "objects")
    else:
        made = S3Store("s3", s3_settings(request.getfixturevalue("server")), rng=random.Random(1))
    await made.open()
    try:
        yield made
        assert made.name == request.param
    finally:
        await made.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Keys of this test begin with it."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name) + "/"
