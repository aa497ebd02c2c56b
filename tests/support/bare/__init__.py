"""Programs in an interpreter that lacks what only Linux has."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
BASE: Final = "BARE_BASE"


def bare_environment(*, base: bool) -> Mapping[str, str]:
    """Return the variables of a process whose Python programs lack it; with `base`, Anabranch has no extra there."""
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, **({BASE: "1"} if base else {})}
