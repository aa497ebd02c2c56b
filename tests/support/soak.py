"""Tests that only `make soak` runs, which is longer than `make test`."""

import os
from typing import Final

import pytest

SOAK: Final = os.environ.get("ANABRANCH_SOAK") == "1"
LONG: Final = pytest.mark.skipif(not SOAK, reason="a long run: set ANABRANCH_SOAK=1")
"""Mark of a test, or of one of its parameters, for long runs only."""
