"""Sizes in bytes as people write and read them: binary units are shown, and both kinds are accepted. Pure."""

import re
from collections.abc import Mapping
from typing import Final

UNITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("", "b"), 1),
    **{name: 1 << 10 * power for power, unit in enumerate("kmgt", 1) for name in (unit, f"{unit}ib")},
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
}
"""Bytes of each unit, by its name in lower case: MiB and M are 1024 * 1024, MB is a million."""
_SIZE: Final = re.compile(r"\s*([0-9]{1,18})\s*([a-zA-Z]*)\s*")
_STEP: Final = 1024
_SHOWN: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `512MiB`, `64MB` or `2147483648`. Raises ValueError."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2].lower() not in UNITS:
        raise ValueError(
            "should be a whole number of bytes, or one with a unit (KiB, MiB, GiB, TiB, or KB, MB, GB, TB) as in 512MiB"
        )
    return int(found[1]) * UNITS[found[2].lower()]


def size_text(size_bytes: float) -> str:
    """Return a size for people: `980 bytes`, `1.5 KiB`, `64 MiB`."""
    if size_bytes < _STEP:
        return f"{size_bytes:,.0f} byte{'' if size_bytes == 1 else 's'}"
    value = float(size_bytes)
    for unit in _SHOWN:
        value /= _STEP
        if round(value, 1) < _STEP or unit == _SHOWN[-1]:
            break
    return f"{value:,.1f}".removesuffix(".0") + f" {unit}"
