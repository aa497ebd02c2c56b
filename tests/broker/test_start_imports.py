"""Modules that a start may not import: each would cost every broker for tests, and every node, time and memory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from anabranch.extras import EXTRAS

SERVING: Final = """
import os, signal, sys
from anabranch.broker.operator.cli import dev, main

def show(*_):
    print(*sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

dev._welcome = show
main(["dev", "--port", "0", "--admin-port", "0"])
"""
SERVE: Final = """
import sys
import anabranch.broker.operator.cli.serve, anabranch.broker.app
print(*sys.modules)
"""
OF_EXTRAS: Final = {package for extra, packages in EXTRAS.items() if extra != "speed" for package in packages}
RARELY_NEEDED: Final = {
    "attr",  # with rich, by structlog
    "difflib",
    "multiprocessing",
    "pygments",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm",
    "tomllib",
    "anabranch.broker.cluster.membership.rebuild",
    "anabranch.broker.kafka.schemas",
    "anabranch.broker.operator.admin.api",
    "anabranch.broker.operator.admin.metrics",
    "anabranch.client",
    "anabranch.s3stream.catalog.backup",
    "anabranch.s3stream.catalog.restore",
    "anabranch.s3stream.store.s3",
    "anabranch.spark",
    "anabranch.tables",
}


@pytest.mark.parametrize("program", [SERVING, SERVE], ids=["dev", "serve"])
def test_a_start_imports_nothing_that_is_rarely_needed(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"structlog", "sqlalchemy", "anabranch.broker.app"} <= loaded
    assert loaded & (OF_EXTRAS | RARELY_NEEDED) == set()
