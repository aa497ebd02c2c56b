"""Fixtures that run each test with `catalog` on SQLite and on a real PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.migration import migrate
from tests.support.catalog_node import opened_catalog
from tests.support.postgres import PostgresServer
from tests.support.quick import real_sqlite


@pytest.fixture(scope="session")
def schema(postgres: PostgresServer) -> str:
    """Name of a database on the server that has a catalog's tables, and nothing in them."""
    url = postgres.new_database()
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.begin() as connection:
        migrate(connection, "postgresql", url)
    engine.dispose()
    return url.rpartition("/")[2]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database with a catalog's tables, and nothing in them."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.db'}"  # `tests.support.quick` sees to the tables
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database(template=request.getfixturevalue("schema"))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty database."""
    if request.param == "sqlite":
        real_sqlite(monkeypatch)
        return f"sqlite:///{tmp_path / 'catalog.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def catalog(url: str) -> AsyncIterator[Catalog]:
    async with opened_catalog(url) as catalog:
        yield catalog
