"""Names of Java's packages and classes, remembered by Python.

Py4J asks the JVM for each part of a name at each use, and the JVM searches all of Spark's 300 jars for a class of that
name: an eighth of the processor time of the tests' queries.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage, JVMView


@contextmanager
def remembered_names() -> Iterator[None]:
    """Look up each name once, while the JVM has the same jars."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (JVMView, JavaPackage):
            patch.setattr(kind, "__getattr__", _remembering(kind.__getattr__))
        yield


def _remembering(find: Any) -> Any:
    def look_up(self: object, name: str) -> Any:
        found = find(self, name)
        self.__dict__[name] = found
        return found

    return look_up
