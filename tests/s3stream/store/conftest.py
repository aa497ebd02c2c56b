"""The stores under test, and a prefix of keys for each test."""

import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.store.local import LocalStore
from anabranch.s3stream.store.rules import PLAIN_PREFIX
from anabranch.s3stream.store.s3 import S3Settings, S3Store
from tests.support.memory_store import MemoryStore
from tests.support.s3 import S3Bucket


def s3_settings(bucket: S3Bucket) -> S3Settings:
    """Settings of a store in the bucket that retries at once."""
    return replace(bucket.settings(), backoff_ms_min=1, backoff_ms_max=10)


@pytest.fixture(params=["memory", "local", "plain", pytest.param("s3", marks=pytest.mark.server)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    clock = itertools.count(1_700_000_000_000)
    made: ObjectStore
    if request.param == "memory":
        made = MemoryStore("memory", now_ms=lambda: next(clock))
    elif request.param in {"local", "plain"}:
        made = LocalStore(request.param, tmp_path / "objects")
    else:
        made = S3Store("s3", s3_settings(request.getfixturevalue("bucket")), rng=random.Random(1))
    await made.open()
    try:
        yield made
        assert made.name == request.param
    finally:
        await made.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Prefix of all keys of this test, for the kind of store `plain` that of files which other programs read."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    begin = PLAIN_PREFIX if parameters.get("store") == "plain" else ""
    return begin + "".join(letter if letter.isalnum() else "-" for letter in request.node.name) + "/"
