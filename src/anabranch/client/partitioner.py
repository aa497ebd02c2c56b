"""Partition of a key as Java's clients choose it: a record that is produced by hand goes where theirs go."""

from typing import Final

_MASK: Final = 0xFFFF_FFFF
_MULTIPLIER: Final = 0x5BD1_E995
_SEED: Final = 0x9747_B28C


def partition_of_key(key: bytes, count: int) -> int:
    """Return the index of one of `count` partitions: Kafka's default partitioner, MurmurHash2 of the key."""
    return (_murmur2(key) & 0x7FFF_FFFF) % count


def _murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit MurmurHash2 of the data, with the seed that Kafka uses."""
    whole = len(data) & ~3
    state = _SEED ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ word
    if rest := data[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15
