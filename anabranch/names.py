"""A check that the packages of this distribution are not hidden by a user's own modules of the same names.

A file `wal.py` in the current directory is imported instead of the package `wal` by `python -m`, and by programs in
that directory. The errors that follow would say nothing of the reason.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("broker", "compaction", "protocol", "s3stream", "spark", "wal")


class ShadowedError(ImportError):
    """A package is hidden. The text is the one line to show."""


def check_names() -> None:
    """Raise ShadowedError if one of the packages is not the one that was installed with this module."""
    home = Path(__file__).parents[1]
    for name in PACKAGES:
        found = find_spec(name)
        if found is None:
            raise ShadowedError(f"the package {name!r} is missing beside {home}: install anabranch again")
        origin = Path(found.origin or "").resolve()
        if origin.parents[1:2] != (home.resolve(),):
            raise ShadowedError(
                f"{origin} hides the package {name!r} of anabranch: rename it, or run from another directory "
                "(`python -P` leaves the current one out)"
            )
