"""Base of all areas of settings, and the types of their values."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from anabranch.broker.node.settings.sizes import parse_size

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def _parse_bytes(value: object) -> object:
    """Accept sizes with a unit, such as `512MiB`, as well as plain numbers."""
    return parse_size(value) if isinstance(value, str) else value


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
