"""Work that thousands of small tests would repeat, and that none of them is about."""

import signal
from functools import wraps
from types import FrameType
from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_STATEMENTS: LRUCache[Any, Any] = LRUCache(5_000)


def share_compiled_statements() -> None:
    """Let all engines of one dialect use what one of them has compiled: each test has a catalog of its own."""

    @wraps(Engine.__init__)
    def set_up(engine: Engine, *arguments: Any, **options: Any) -> None:
        original(engine, *arguments, **options)
        engine._compiled_cache = _STATEMENTS  # noqa: SLF001

    def is_same(dialect: DefaultDialect, other: object) -> bool:
        return type(dialect) is type(other)

    def of_class(dialect: DefaultDialect) -> int:
        return hash(type(dialect))

    original = Engine.__init__
    Engine.__init__ = set_up  # type: ignore[method-assign,assignment]
    DefaultDialect.__eq__ = is_same  # type: ignore[method-assign,assignment]
    DefaultDialect.__hash__ = of_class  # type: ignore[method-assign,assignment]


def handle_interrupts() -> None:
    """Raise KeyboardInterrupt by a handler that is not Python's own.

    asyncio replaces that one for each run of a loop, and `signal` then renders the task of the loop, with all that it
    was given: up to a tenth of a test.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
