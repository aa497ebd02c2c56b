"""The crate's own tests, which its package manager runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bootstrap import NATIVE, find_cargo
from tests.support.native import require_native


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first run builds the crate
def test_the_crate_passes_its_own_tests() -> None:
    require_native()
    cargo = find_cargo()
    if cargo is None:
        pytest.skip("there is no cargo")
    path = os.pathsep.join([str(Path(cargo).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "PYO3_PYTHON": sys.executable}
    subprocess.run([cargo, "test", "-q"], cwd=NATIVE, env=environment, check=True)
