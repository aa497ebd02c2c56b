"""The catalog: what exists, who owns it, where it lies."""

from s3stream.catalog.interface import Catalog
from s3stream.catalog.sql import SqlCatalog


def open_catalog(url: str) -> Catalog:
    """The catalog behind `url` (`sqlite:///PATH` or `postgresql://...`); call its `open` before anything else."""
    return SqlCatalog(url)
