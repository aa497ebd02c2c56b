"""Records that every client sends and reads, with the contents that clients most easily lose."""

from typing import NamedTuple

START_MS = 1_600_000_000_000
PARTITIONS = 3


class Sent(NamedTuple):
    """A record as a consumer must receive it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]


def sample(count: int, *, value_bytes: int = 100) -> list[Sent]:
    """Return records over all partitions: with and without keys, values and headers, a second apart."""
    return [
        Sent(
            partition=n % PARTITIONS,
            key=None if n % 5 == 4 else b"key %d" % n,
            value=None if n % 7 == 6 and n % 5 != 4 else (b"value %d " % n).ljust(value_bytes, b"x"),
            timestamp_ms=START_MS + n * 1000,
            headers=(("n", b"%d" % n), ("n", b"again"), ("empty", b"")) if n % 3 else (),
        )
        for n in range(count)
    ]


def by_partition(records: list[Sent]) -> dict[int, list[Sent]]:
    """Return the records of each partition in their order."""
    return {index: [record for record in records if record.partition == index] for index in range(PARTITIONS)}
