"""The client of docs/getting-started.md, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"
EXAMPLE = re.compile(r"## With a Python client\n+```python\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_python_client_runs_again_and_again() -> None:
    found = EXAMPLE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    with Broker() as broker:
        code = found[1].replace("127.0.0.1:9092", broker.bootstrap_servers)
        for offset in range(3):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert (done.stdout, done.stderr) == (f"0 {offset} b'hello'\n", "")
