"""Generation of Python source: indented lines, fresh names, and the constants that the lines refer to.

The codec generates one function per message, version and direction, as `dataclasses` generates `__init__`. What a
schema interpreter would look up for every field of every message is decided once, and consecutive fixed-size fields
become one call of one compiled `struct.Struct`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from anabranch.protocol.wire import Field, Schema


class PythonSource:
    """Source of generated functions. `constants` is the namespace they run in."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = constants
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that ends in a colon, and indent the lines added inside the `with` block."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        """Return a local name that was not used before."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: Any, prefix: str) -> str:
        """Return the name for a value that the lines refer to; the same name for the same object."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.fresh(prefix)
        self.constants[name] = value
        return name

    def unpacker(self, layout: str) -> tuple[str, int]:
        """Return the name of ``unpack_from`` for a struct layout, and the layout's size in bytes."""
        return self._struct_method("unpack_" + layout, layout, lambda s: s.unpack_from), Struct(">" + layout).size

    def packer(self, layout: str) -> str:
        """Return the name of ``pack`` for a struct layout."""
        return self._struct_method("pack_" + layout, layout, lambda s: s.pack)

    def _struct_method(self, name: str, layout: str, method: Callable[[Struct], Any]) -> str:
        name = name.replace("?", "z")
        if name not in self.constants:
            self.constants[name] = method(Struct(">" + layout))
        return name

    def text(self) -> str:
        """Return the source so far."""
        return "\n".join(self._lines) + "\n"

    def compile(self, function: str, filename: str) -> Any:
        """Execute the source and return one of its functions."""
        # The source is generated from our own declarations alone; it contains no byte of any input.
        exec(compile(self.text(), filename, "exec"), self.constants)  # noqa: S102
        return self.constants[function]


def literal(source: PythonSource, value: Any) -> str:
    """Return an expression for a field's default: a literal where that is exact and fast, else a named constant."""
    if value is None or value == () or isinstance(value, int | str):
        return repr(value)
    return source.constant(value, "default")


def untagged(schema: Schema, version: int) -> list[Field]:
    """Return the fields that a version carries in order."""
    return [f for f in schema.fields if version in f.versions and version not in f.tagged]


def tagged(schema: Schema, version: int) -> list[Field]:
    """Return the fields that a version carries as tagged fields, in the order of their tags."""
    return sorted((f for f in schema.fields if version in f.versions and version in f.tagged), key=lambda f: f.tag)


def absent(schema: Schema, version: int) -> list[Field]:
    """Return the fields that a version does not have."""
    return [f for f in schema.fields if version not in f.versions]
