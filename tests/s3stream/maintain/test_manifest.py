"""The bytes and keys of manifests: the format's own example, and damaged bytes."""

import gzip
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.s3stream.catalog.manifest_state import BorrowedRange, CatalogState, StreamState, TopicState
from anabranch.s3stream.catalog.values import (
    DEFAULT_RETENTION_SINCE,
    AclRow,
    DetachedTopic,
    Takeover,
    TokenRow,
    WalInfo,
    WalState,
)
from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.maintain.manifest import (
    Manifest,
    ManifestKey,
    decode_manifest,
    encode_manifest,
    json_text,
    manifest_key,
    parse_manifest_key,
)
from anabranch.s3stream.model import NodeIdentity, object_key

DESCRIPTION = Path(__file__).parents[3] / "s3stream" / "maintain" / "MANIFEST.md"

EXAMPLE = Manifest(
    sequence=42,
    cluster="demo",
    node=NodeIdentity(1, 7),
    written_ms=1_700_000_001_000,
    state=CatalogState(
        catalog_id=bytes(range(16)),
        schema_version=4,
        counters={"stream": 3, "object": 11, "producer": 1000},
        nodes={1: 7},
        wals=[WalInfo("00000000000000aa", 1, 7, "/var/lib/anabranch/wal", WalState.OPEN, 1_700_000_000_000)],
        topics=[TopicState("flights", b"f" * 16, False, {"retention.ms": "-1"}, [1, 2])],
        configs={("group", "readers"): {"consumer.session.timeout.ms": "60000"}},
        streams=[StreamState(1, 7, 1, 1, 7, 0, 1200), StreamState(2, 7, 1, 1, 7, 500, 900)],
        committed={1: [3, 4, 9]},
        prepared=[10],
    ),
)


def test_the_example_of_the_format_is_what_the_code_makes() -> None:
    described = re.search(r"^    (\{\"borrowed.*?\})$", DESCRIPTION.read_text(), re.MULTILINE | re.DOTALL)
    assert described is not None
    assert json_text(EXAMPLE) == "".join(line.strip() for line in described[1].splitlines())
    assert manifest_key("demo", 1, 42) == "manifest/demo/1/00000000000000000042"


def test_all_that_a_manifest_tells_comes_back() -> None:
    state = replace(
        EXAMPLE.state,
        schema_version=DEFAULT_RETENTION_SINCE,
        topics=[*EXAMPLE.state.topics, TopicState("__consumer_offsets", b"o" * 16, True, {}, [9, 7, 8])],
        detached=[DetachedTopic("kept", b"d" * 16, {"a": "b"}, [5, 6], internal=False, detached_ms=123)],
        wals=[
            *EXAMPLE.state.wals,
            WalInfo("0b", 2, 9, "s3:wal/demo/2/", WalState.DRAINED, 7, Takeover.SHARED, kind="object"),
            WalInfo("0c", 3, 9, "/dev/sdb", WalState.GIVEN_UP, 7, Takeover.MACHINE),
        ],
        tokens=(TokenRow("id", "User:a", "User:b", ("User:c",), 1000, 2000, 3000),),
        acls=(AclRow(2, "flights", 3, "User:a", "*", 3, 3), AclRow(4, "kafka-cluster", 3, "User:b", "*", 2, 2)),
        borrowed=[BorrowedRange(12, 0, 2**40, 3, 1)],
        committed={1: [3, 4, 9], 2: [2**40]},
        prepared=[],
    )
    made = replace(EXAMPLE, state=state)
    assert decode_manifest(encode_manifest(made), where="x") == made
    assert encode_manifest(made) == encode_manifest(made), "the same bytes whenever it is made"


def test_topics_of_before_a_default_retention_keep_their_records() -> None:
    def retention_of(schema_version: int) -> list[str | None]:
        state = replace(
            EXAMPLE.state,
            schema_version=schema_version,
            topics=[
                TopicState("bare", b"b" * 16, False, {}, [1]),
                TopicState("own", b"o" * 16, False, {"retention.ms": "5"}, [2]),
                TopicState("internal", b"i" * 16, True, {}, [3]),
            ],
            detached=[DetachedTopic("aside", b"a" * 16, {}, [4], internal=False, detached_ms=123)],
        )
        found = decode_manifest(encode_manifest(replace(EXAMPLE, state=state)), where="x").state
        all_configs = [*(each.configs for each in found.topics), *(each.configs for each in found.detached)]
        return [configs.get("retention.ms") for configs in all_configs]

    assert retention_of(DEFAULT_RETENTION_SINCE - 1) == ["-1", "5", None, "-1"]
    assert retention_of(DEFAULT_RETENTION_SINCE) == [None, "5", None, None]


@pytest.mark.parametrize("keep", [0, 10, 100, -1])
def test_a_manifest_cut_short_is_damaged(keep: int) -> None:
    with pytest.raises(CorruptObject, match="manifest x: "):
        decode_manifest(encode_manifest(EXAMPLE)[:keep], where="x")


def test_every_damaged_byte_of_the_content_is_noticed() -> None:
    data = encode_manifest(EXAMPLE)
    for at in range(10, len(data)):  # before it: fields of gzip's header without a meaning here
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        with pytest.raises(CorruptObject):
            decode_manifest(bytes(damaged), where="x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"version":1', '"version":2'), "version 2, expected 1"),
        (("anabranch manifest", "another"), "expected the format"),
        (('"prepared":[10],', ""), "damaged: KeyError"),
        (('"streams":[[1,7,1,1,7,0,1200]', '"streams":[[1]'), "damaged: TypeError"),
    ],
)
def test_what_is_no_manifest_of_this_version_is_refused(change: tuple[str, str], message: str) -> None:
    text = json_text(EXAMPLE)
    assert change[0] in text
    with pytest.raises(CorruptObject, match=message):
        decode_manifest(gzip.compress(text.replace(*change).encode()), where="x")
    with pytest.raises(CorruptObject):
        decode_manifest(gzip.compress(b"[]"), where="x")


def test_keys_say_what_they_are_of() -> None:
    assert parse_manifest_key(manifest_key("a/b", 0, 2**64 - 1)) == ManifestKey("a/b", 0, 2**64 - 1)
    assert sorted(manifest_key("c", 1, number) for number in (10, 9, 100)) == [
        manifest_key("c", 1, number) for number in (9, 10, 100)
    ]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "manifest",
        "manifest/c/1",
        "manifest/c/1/42",
        "manifest/c/x/00000000000000000042",
        "manifest/c/01/00000000000000000042",
        "manifests/c/1/00000000000000000042",
        object_key("manifest", 42),
    ],
)
def test_other_keys_are_no_manifests(key: str) -> None:
    assert parse_manifest_key(key) is None


def test_ten_thousand_partitions_are_a_small_manifest() -> None:
    seeded = random.Random(11)
    streams = [
        StreamState(number, 3, 1, 1, 3, seeded.randrange(10**6), seeded.randrange(10**6, 10**9))
        for number in range(1, 10_001)
    ]
    topics = [
        TopicState(f"topic-{number}", seeded.randbytes(16), False, {}, range(10 * number + 1, 10 * number + 11))
        for number in range(1_000)
    ]
    objects = sorted(seeded.sample(range(10**6), 10_000))
    state = replace(EXAMPLE.state, topics=topics, streams=streams, committed={1: objects})
    assert len(encode_manifest(replace(EXAMPLE, state=state))) < 256 * 1024
