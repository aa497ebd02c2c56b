"""A fuzz target, and the helpers that targets share: choices drawn from bytes, and images edited by a script."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
TARGETS: Final = ("requests", "connections", "sasl", "batches", "logs", "objects", "catalogs", "settings", "pipelines")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Target:
    """One kind of input. `check` raises for any input that the code under test does not handle as documented."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    """Valid inputs, built by code. The files of the corpus are added to them."""
    quick_inputs: int
    """Mutated inputs of the test that always runs."""
    fresh: Callable[[Random], bytes] | None = None
    """Makes a new input that has the structure of a valid one."""
    words: Sequence[bytes] = ()
    """Pieces that mutations insert."""
    close: Callable[[], None] = _nothing
    """Ends what `check` keeps between inputs."""


def load(name: str) -> Target:
    """Return the target of a name in TARGETS."""
    target: Target = import_module(f"tests.fuzz.{name}").TARGET
    return target


def corpus(name: str) -> Mapping[str, bytes]:
    """Return the inputs of a target that are kept in the repository, by the names of their files."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).glob("*"))}


def check_message(error: Exception) -> None:
    """Assert that the text of an error is one line without control characters."""
    text = str(error)
    assert text.isprintable(), f"not one line of text: {text!r}"


class Choices:
    """Decisions drawn from the bytes of an input, zeros after their end: similar bytes make similar decisions."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that are not drawn yet."""
        return max(0, len(self._data) - self._at)

    def take(self, size: int) -> bytes:
        """Draw up to `size` bytes."""
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def number(self, size: int) -> int:
        """Draw an unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size).ljust(size, b"\0"), "big")

    def rest(self) -> bytes:
        """Draw all that is left."""
        return self.take(self.left)


EDITS: Final = 7
NUMBERS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def edited(image: bytes, script: Choices) -> bytearray:
    """Return `image` after the edits of a script, each an operation, a position, a length and bytes.

    The operations are what broken disks and careless hands do: flip, overwrite, blank, copy, cut, and set numbers.
    """
    data = bytearray(image)
    while script.left and data:
        operation = script.number(1) % EDITS
        at = script.number(3) % len(data)
        length = script.number(1)
        match operation:
            case 0:
                data[at] ^= 1 << length % 8
            case 1:
                data[at : at + length] = script.take(length)[: len(data) - at]
            case 2:
                at -= at % 512
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            case 3:
                source = script.number(3) % len(data)
                piece = data[source : source + 16 * length]
                data[at : at + len(piece)] = piece[: len(data) - at]
            case 4:
                del data[at:]
            case 5:
                size = (1, 2, 4, 8)[length % 4]
                number = NUMBERS[length // 4 % len(NUMBERS)] % (1 << 8 * size)
                piece = bytearray(number.to_bytes(size, "little" if length & 128 else "big"))
                data[at : at + size] = piece[: len(data) - at]
            case _:
                del data[at : at + length]
    return data


def random_script(random: Random) -> bytes:
    """Return a script of a few edits."""
    script = b""
    for _ in range(random.choice((1, 1, 2, 5))):
        length = random.randrange(256)
        operation = random.randrange(EDITS)
        script += bytes((operation,)) + random.randbytes(3) + bytes((length,))
        if operation == 1:
            script += random.randbytes(length)
        elif operation == 3:
            script += random.randbytes(3)
    return script
