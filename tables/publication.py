"""Requests to a worker process that publish tables in other catalogs of Iceberg, and its answers: plain data.

As in `requests`, nothing of Arrow or Iceberg is imported here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class ExternalCatalog:
    """Another catalog, and how it is reached."""

    name: str
    """Its name in the settings, for errors."""
    type: Literal["rest", "jdbc"]
    uri: str = field(repr=False)
    """rest: URL, without `/v1`. jdbc: `sqlite:///PATH` or `postgresql://USER@HOST/DB`, perhaps with a password."""
    namespace: Sequence[str] = ("default",)
    """Levels of the namespace of its tables."""
    catalog_name: str = ""
    """jdbc: name of the catalog in the database, where several may be."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """rest: Iceberg's properties of a client: `warehouse`, `token`, `credential`, `header.NAME`, ..."""
    ca_file: str = ""
    """rest: path of a PEM file with authorities; empty: those of the system."""
    password: str = field(default="", repr=False)
    """jdbc: password of the database's user."""
    secrets: Sequence[str] = field(default=(), repr=False)
    """Texts that no error may show."""


class Place(NamedTuple):
    """A table, and where its files are."""

    name: str
    table_id: str
    """Iceberg's UUID of the table: 32 hexadecimal digits."""
    location: str
    """URI of its folder."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A version of a table that another catalog is to show."""

    catalog: ExternalCatalog
    table: Place
    metadata_uri: str
    metadata: str
    """Path of a local copy of this metadata.json."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Publish":
        """Return what `to_json` was given."""
        parts = {"catalog": ExternalCatalog(**found["catalog"]), "table": Place(*found["table"])}
        return cls(**dict(found) | parts)


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A table that another catalog is not to show any more. Its files stay."""

    catalog: ExternalCatalog
    table: Place

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Withdraw":
        """Return what `to_json` was given."""
        return cls(ExternalCatalog(**found["catalog"]), Place(*found["table"]))
