"""Section `[columns]` of a pipeline's TOML file: what becomes of the fields of values."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from anabranch.spark.pipeline.layout import Problem
from anabranch.spark.pipeline.sections import Section, broken

_PATH = re.compile(r"[^.\s]+(?:\.[^.\s]+)*")


def _path(value: Any) -> Any:
    if isinstance(value, str) and not _PATH.fullmatch(value):
        raise ValueError("expected a field of the values, such as 'id' or 'place.city'")
    return value


FieldPath = Annotated[str, BeforeValidator(_path)]
"""A field of values, with dots before the fields of structs."""


class ColumnsSection(Section):
    """Fields of decoded values as columns of the table: which, under which names and in which types.

    Fields are named as the values have them: `place.city` is the field `city` of `place`.
    """

    top_level: bool = False
    """Make each field a column of the table, beside the record's own, instead of a field of the column `data`."""
    select: tuple[FieldPath, ...] = ()
    """Fields to keep, such as `["id", "place.city"]`, each under its own last name; default: all of them."""
    rename: dict[FieldPath, Annotated[str, Field(pattern=r"^[^.\s]+$")]] = Field(default={})
    """New names of fields, such as `{ "place.city" = "city" }`."""
    cast: dict[FieldPath, str] = Field(default={})
    """Other types of fields, such as `{ cents = "decimal(12,2)" }`. A value that the type does not have is an error."""
    filter: str | None = None
    """SQL condition on the decoded record, such as `data.country = 'DE'`. Others are left out, also where it is null;
    with keys, such a record deletes its row."""

    @property
    def is_plain(self) -> bool:
        """True if values become what they are without this section, but for the level of their fields."""
        return not (self.select or self.rename or self.cast)

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        yield from broken((len(set(self.select)) < len(self.select), "select", "a field is named twice"))
