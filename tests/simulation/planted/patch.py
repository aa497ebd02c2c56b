"""Planting a bug: part of a module's source is replaced, and the code of its functions is exchanged in place.

The text that is replaced must occur exactly once in the module, so that the catalogue fails when the code changes.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.plan import Plan


@dataclass(frozen=True)
class Edit:
    """A replacement in a module's source."""

    module: str
    old: str
    new: str


@dataclass(frozen=True)
class Planted:
    """A planted bug, and the number of seeds within which the simulator finds it."""

    name: str
    what: str
    """The bug, in one line."""
    edits: Sequence[Edit]
    found_by: str
    """Pattern of the failures that count: what the checks say that find it."""
    seeds: int
    adapt: "Callable[[Plan], Plan]" = lambda plan: plan
    """Makes the bug likely to matter in a plan, for instance by adding a kind of fault."""

    def plant(self) -> None:
        """Plant it in this process, for good."""
        for module in {edit.module: None for edit in self.edits}:
            _exchange(importlib.import_module(module), [edit for edit in self.edits if edit.module == module])


def changed_source(module: ModuleType, edits: Sequence[Edit]) -> str:
    """Return the module's source with the edits. Raises AssertionError when one does not fit."""
    source = inspect.getsource(module)
    for edit in edits:
        found = source.count(edit.old)
        assert found == 1, f"{edit.module}: {edit.old!r} occurs {found} times"
        source = source.replace(edit.old, edit.new)
    return source


def _exchange(module: ModuleType, edits: Sequence[Edit]) -> None:
    """Give each function of the module the code that it has in the changed source."""
    made = ModuleType(module.__name__)
    made.__file__ = module.__file__
    exec(compile(changed_source(module, edits), str(module.__file__), "exec"), vars(made))
    old, new = dict(_functions(module)), dict(_functions(made))
    assert len(old) == len(list(_functions(module))), f"{module.__name__}: two functions have one name"
    exchanged = 0
    for name, function in old.items():
        if name in new and function.__code__ != new[name].__code__:
            function.__code__ = new[name].__code__
            exchanged += 1
    assert exchanged, f"{module.__name__}: no function has changed"


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions and methods that a module defines, by qualified name."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__:
            yield from _functions_of(name, value)


def _functions_of(name: str, value: Any) -> Iterator[tuple[str, FunctionType]]:
    value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if isinstance(value, FunctionType):
        yield name, value
    elif isinstance(value, type):
        for inner, member in vars(value).items():
            if isinstance(member, (staticmethod, classmethod)):
                yield from _functions_of(f"{name}.{inner}", member.__func__)
            elif isinstance(member, property):
                for part, accessor in (("get", member.fget), ("set", member.fset)):
                    if accessor is not None:
                        yield from _functions_of(f"{name}.{inner}.{part}", accessor)
            elif isinstance(member, FunctionType):
                yield from _functions_of(f"{name}.{inner}", member)
