"""Start of tracing, if the settings ask for it."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from anabranch.broker.node.settings.model import Settings
from anabranch.extras import MissingExtra, needed

if TYPE_CHECKING:
    from anabranch.broker.node.tracing.tracer import NodeTracer


class TracingError(OSError):
    """The node cannot send traces. The text is the one line to show."""


def open_tracer(
    settings: Settings, stack: AsyncExitStack, random: Callable[[], float], now_ns: Callable[[], int]
) -> "NodeTracer | None":
    """Return the tracer of the node, which `stack` closes; None if tracing is off. `random` returns a number in [0, 1).

    Raises TracingError.
    """
    if not settings.tracing.enabled:
        return None
    try:
        with needed("setting tracing.enabled"):
            from anabranch.broker.node.tracing.tracer import NodeTracer
    except MissingExtra as error:
        raise TracingError(f"{error}, or set tracing.enabled to false") from None
    try:
        tracer = NodeTracer(settings.tracing, settings.node, random, now_ns)
    except ValueError as error:
        raise TracingError(f"a variable OTEL_... that concerns traces is invalid: {error}") from None
    stack.push_async_callback(tracer.close)
    return tracer
