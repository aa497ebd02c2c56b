"""The catalog: what exists, who owns it, where it lies."""

from s3stream.catalog.interface import Catalog
from s3stream.catalog.sql import SqlCatalog


def open_catalog(url: str, *, read_only: bool = False) -> Catalog:
    """The catalog behind `url` (`sqlite:///PATH` or `postgresql://...`); call its `open` before anything else.

    With `read_only` commands that change something are refused, nothing is migrated, and nothing is written: a
    database that only can be read will do.
    """
    return SqlCatalog(url, read_only=read_only)
