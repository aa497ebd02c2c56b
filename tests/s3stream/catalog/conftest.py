"""Fixtures that run each test with `catalog` on SQLite and on a real PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from tests.support.catalog_node import opened_catalog
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def catalog(url: str) -> AsyncIterator[Catalog]:
    async with opened_catalog(url) as catalog:
        yield catalog
