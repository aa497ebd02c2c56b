"""The native part: whether this process uses the distribution `anabranch-native`, which has twins of hot paths.

Without it nothing is missing but speed. The environment variable ANABRANCH_NATIVE decides: `auto` (the default) uses
the part if it is installed and fits, `require` fails without it, `off` leaves it alone.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

VARIABLE: Final = "ANABRANCH_NATIVE"
MODULE: Final = "anabranch_native"
API: Final = 5
"""Names and meanings of what the part offers. `native/src/lib.rs` has the number of the part."""
ADVICE: Final = (
    f"install the anabranch-native of this version, build it again (pip install ./native), or set {VARIABLE}=off"
)
Twin = TypeVar("Twin", bound=type)


class NativeError(Exception):
    """ANABRANCH_NATIVE has an unknown value, or the part that it requires cannot be used."""


@dataclass(frozen=True, slots=True)
class NativePart:
    """The part, or why it is not in use."""

    module: Any | None
    """The extension module; None: Python alone."""
    description: str
    """Version of the part in use, or why none is."""
    advice: str = ""
    """Advice for a part that is installed and cannot be used; empty: nothing."""

    def twin(self, python: Twin) -> Twin:
        """Return the native twin of a class, or the class itself."""
        if self.module is None:
            return python
        twin: Twin = getattr(self.module, python.__name__)
        return twin


def choose(mode: str, load: Callable[[str], Any] = importlib.import_module) -> NativePart:
    """Return the part as `mode` says. Raises NativeError."""
    if mode not in {"auto", "require", "off"}:
        raise NativeError(f"{VARIABLE} is {mode!r}, expected auto, require or off")
    if mode == "off":
        return NativePart(None, f"{VARIABLE} is off")
    try:
        module = load(MODULE)
    except ImportError as error:
        is_installed = error.name != MODULE
        reason = f"cannot be loaded: {error}" if is_installed else "anabranch-native is not installed"
        advice = ADVICE if is_installed else ""
    else:
        if module.API == API:
            return NativePart(module, str(module.__version__))
        reason, advice = f"anabranch-native {module.__version__} has API {module.API}, expected {API}", ADVICE
    if mode == "require":
        raise NativeError(f"{VARIABLE} is require, but {reason}")
    return NativePart(None, reason, advice)


@lru_cache(maxsize=1)
def native_part() -> NativePart:
    """Return the part of this process. Raises NativeError."""
    return choose(os.environ.get(VARIABLE) or "auto")
