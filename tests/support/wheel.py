"""Helpers of the tests of the wheel, and a test that its user may write."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from anabranch.native import VARIABLE

ROOT: Final = Path(__file__).parents[2]
PLUGIN_TEST: Final = """
from confluent_kafka import Producer

def test_a_record_is_acknowledged(anabranch_broker, anabranch_topic):
    producer = Producer({"bootstrap.servers": anabranch_broker.bootstrap_servers})
    producer.produce(anabranch_topic, b"x")
    assert producer.flush(100) == 0
"""


def run(
    command: Sequence[str | Path], folder: Path, *, code: int = 0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a directory; it must exit with `code`. Its environment need not have the native part."""
    unwanted = ("PYTHON", "PYTEST", "VIRTUAL", VARIABLE)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    found = subprocess.run(
        command, cwd=folder, env={**clean, **(environment or {})}, capture_output=True, text=True, check=False
    )
    assert found.returncode == code, found.stdout + found.stderr
    return found
