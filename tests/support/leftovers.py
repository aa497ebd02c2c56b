"""Objects that a failed test has left open. They must not fail the test that runs when they are collected."""

import gc
import sys
import warnings


def discard_leftovers() -> None:
    """Collect what is only referenced by the traceback of the last failure, without a word about what was left open."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)  # pytest keeps them until the next test runs
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    finally:
        sys.unraisablehook = before
