"""Programs in an interpreter that lacks what only Linux has."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
EXTRAS: Final = "BARE_EXTRAS"
"""Variable with the extras that Anabranch has there. Unset: all but `speed`."""


def bare_environment(extras: Collection[str] | None = None) -> Mapping[str, str]:
    """Return the variables of a process whose Python programs lack it, and in Anabranch all but these extras."""
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, **({} if extras is None else {EXTRAS: " ".join(extras)})}
