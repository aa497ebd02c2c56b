"""Interface by which the storage engine and compaction report their background work to a tracer.

Work nests by the current context: a step belongs to the work in which it begins, and so does a task that is started
there. Without a tracer (`NO_TRACING`, the default) nothing is kept and nothing is computed.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol


class OffsetRange(Protocol):
    """A contiguous run [start, end) of one stream."""

    @property
    def stream_id(self) -> int:
        """Id of the stream."""
        ...

    @property
    def start_offset(self) -> int:
        """First offset."""
        ...

    @property
    def end_offset(self) -> int:
        """Offset after the last one."""
        ...


class Tracing(Protocol):
    """A tracer of background work. Its methods never raise, and never wait."""

    def upload(self, runs: Iterable[OffsetRange], size_bytes: int) -> AbstractContextManager[None]:
        """Enclose the upload of these runs, which are durable."""
        ...

    def compaction(self, stage: str, inputs: Iterable[int]) -> AbstractContextManager[None]:
        """Enclose a compaction of objects, given by their ids."""
        ...

    def step(self, name: str) -> AbstractContextManager[None]:
        """Enclose a step of the current work."""
        ...

    def committed(self, object_ids: Iterable[int]) -> None:
        """Note the objects that the current work has written and committed."""
        ...


class NoTracing:
    """A tracer that keeps nothing."""

    def upload(self, runs: Iterable[OffsetRange], size_bytes: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Enclose nothing."""
        return nullcontext()

    def compaction(self, stage: str, inputs: Iterable[int]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Enclose nothing."""
        return nullcontext()

    def step(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Enclose nothing."""
        return nullcontext()

    def committed(self, object_ids: Iterable[int]) -> None:
        """Note nothing."""


NO_TRACING: Final = NoTracing()
