"""The wheel of this checkout."""

import sys
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder)
    (made,) = folder.glob("*.whl")
    return made
