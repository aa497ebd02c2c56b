"""Writes tables that DuckDB reads by a REST catalog as Parquet: `python duckdb_rows.py URL TOKEN FOLDER NAME ...`.

It runs in an environment of its own, with a DuckDB whose extensions pip installs.
"""

import sys
from pathlib import Path
from typing import Any

import duckdb


def main(url: str, token: str, folder: str, *names: str) -> None:
    """Copy each table to a file of its name in the folder."""
    connection: Any = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    packages = Path(duckdb.__file__).parent.parent
    for extension in ("avro", "httpfs", "iceberg"):  # as INSTALL and LOAD do where there is a network
        (file,) = packages.glob(f"duckdb_ext/extensions/*/*/{extension}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    access = f"TOKEN '{token}'" if token else "AUTHORIZATION_TYPE 'none'"
    connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{url}', {access})")
    for name in names:
        place = Path(folder) / f"{name}.parquet"
        connection.execute(f'COPY (SELECT * FROM lake."default"."{name}") TO \'{place}\' (FORMAT parquet)')


if __name__ == "__main__":
    main(*sys.argv[1:])
