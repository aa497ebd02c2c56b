"""The limit of a table's fields, which is kept while a schema becomes types.

A schema that refers to its parts by name may be small and have 2^n fields: they are counted as they are made.
"""

from typing import Final

from anabranch.tables.errors import SchemaError

FIELDS_MAX: Final = 20_000
"""Fields of a table, at all levels: each version of its metadata has them."""


class FieldCount:
    """Number of the fields of a schema so far, with elements of lists, keys and values of maps."""

    def __init__(self) -> None:
        self._fields = 0

    def add(self, fields: int) -> None:
        """Count more fields. Raises SchemaError if there are too many."""
        self._fields += fields
        if self._fields > FIELDS_MAX:
            raise SchemaError(f"more than {FIELDS_MAX:,} fields, which are the most that a table has")
