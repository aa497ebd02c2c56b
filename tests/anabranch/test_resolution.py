"""Distributions of the base: few, with wheels for each platform, beside old versions of what others need.

pip resolves against the package registry and installs nothing. Markers are those of this machine, as pip's are.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DISTRIBUTIONS_MAX: Final = 12
PLATFORMS: Final[Mapping[str, Sequence[str]]] = {
    "macOS on arm64": ("macosx_14_0_arm64",),
    "macOS on x86-64": ("macosx_14_0_x86_64",),
    "Linux on arm64": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    "Linux with musl": ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64"),
}
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def base() -> list[str]:
    """The requirements of the base."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return found


def resolved(folder: Path, requirements: Sequence[str], *options: str) -> dict[str, str]:
    """Return the versions of the distributions that pip would install into an empty folder, by name."""
    command: list[str | Path] = [
        *PIP,
        "--ignore-installed",
        "--target",
        folder,
        "--report",
        "-",
        *options,
        *requirements,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in found}


@pytest.fixture(scope="module", autouse=True)
def _registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where no package registry is reachable."""
    probe = str(tmp_path_factory.mktemp("probe"))
    command = [*PIP, "--ignore-installed", "--no-deps", "--target", probe, "click"]
    if subprocess.run([*command, "--retries", "0"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no package registry is reachable")


def test_the_base_is_small(tmp_path: Path) -> None:
    assert len(resolved(tmp_path, base())) <= DISTRIBUTIONS_MAX


@pytest.mark.parametrize("version", ["3.11", "3.14"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_base_has_wheels(tmp_path: Path, platform: str, version: str) -> None:
    options = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp"]
    options += [part for name in PLATFORMS[platform] for part in ("--platform", name)]
    assert len(resolved(tmp_path, base(), *options)) <= DISTRIBUTIONS_MAX


def test_the_base_lives_beside_old_versions(tmp_path: Path) -> None:
    found = resolved(tmp_path, [*base(), "boto3==1.40.0", "pydantic<2"])
    assert found["boto3"] == "1.40.0"
    assert found["pydantic"].startswith("1.")
