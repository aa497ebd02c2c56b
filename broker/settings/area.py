"""Base of all areas of settings, and the types of their values."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
_UNITS = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": 1 << 40, "tib": 1 << 40}


def _parse_bytes(value: object) -> object:
    """Accept sizes with a unit, such as `512MiB`, as well as plain numbers."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value)
        if match and match[2].lower() in _UNITS:
            return int(match[1]) * _UNITS[match[2].lower()]
        raise ValueError("should be a whole number of bytes, or one with a unit (KiB, MiB, GiB, TiB) as in 512MiB")
    return value


Bytes = Annotated[int, BeforeValidator(_parse_bytes)]
CENTURY_MS = 36_525 * 86_400_000
"""Upper limit of times that are added to the clock: the sum has to fit into the catalog's 64 bits."""
Port = Annotated[int, Field(ge=0, le=65535)]


class Area(BaseModel):
    """One area of the settings. Its values never change after the start. An unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_for_other_types(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number or text is expected: Python would accept true as 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("should be a number or a text, not true or false")
        return value
