"""Commands of these tests do not see the profiles of whoever runs them."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own-config"))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)
