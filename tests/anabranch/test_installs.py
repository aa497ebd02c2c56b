"""The wheel with its dependencies from the package registry: uv, pipx, and each Python version that is there."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support import tools
from tests.support.soak import LONG
from tests.support.wheel import PLUGIN_TEST, ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONSTRAINTS: Final = ROOT / "constraints.txt"
NO_SERVER: Final = "postgresql://nobody@127.0.0.1:1/nothing"
PYENV: Final = Path("~/.pyenv/versions").expanduser()


def find_python(version: str) -> Path:
    """An interpreter of a version. The shims of pyenv are there without one, and fail."""
    places = [Path(shutil.which(f"python{version}") or ""), *PYENV.glob(f"{version}.*/bin/python")]
    if sys.version.startswith(f"{version}."):
        places.insert(0, Path(sys.executable))
    for place in places:
        if not place.is_file():
            continue
        code = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return place
    pytest.skip(f"there is no Python {version} on this machine")


def lacking(package: str, extra: str) -> str:
    return f"needs {package}, which is missing or too old: pip install 'anabranch[{extra}]'\n"


def check_without_extras(program: Path, folder: Path) -> None:
    """The program works; without an extra it names the one that a command needs, in one line."""
    assert run([program, "--version"], folder).stdout.startswith("anabranch, version ")
    assert "--data-dir" in run([program, "serve", "--help"], folder).stdout
    said = run([program, "cluster", "status", "--catalog-url", NO_SERVER], folder, code=1).stderr
    assert said == f"Error: this command {lacking('rich', 'cli')}"
    said = run([program, "spark", "ingest", "some.toml"], folder, code=1).stderr
    assert said == f"Error: a Spark job {lacking('pyspark', 'spark')}"


def test_uv_installs_it_as_a_tool_with_an_extra(wheel: Path, tmp_path: Path) -> None:
    uv = tools.packaging("uv")
    environment = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    install: list[str | Path] = [
        uv,
        "tool",
        "install",
        "--quiet",
        "--no-config",
        "--python",
        sys.executable,
        "--constraints",
        CONSTRAINTS,
    ]
    run([*install, f"anabranch @ {wheel.as_uri()}"], tmp_path, environment=environment)
    check_without_extras(tmp_path / "bin" / "anabranch", tmp_path)
    run([*install, "--force", f"anabranch[cli,postgres] @ {wheel.as_uri()}"], tmp_path, environment=environment)
    said = run([tmp_path / "bin" / "anabranch", "cluster", "status", "--catalog-url", NO_SERVER], tmp_path, code=1)
    assert "onnection refused" in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_pipx_installs_it(wheel: Path, tmp_path: Path) -> None:
    pipx = tools.packaging("pipx")
    environment = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    install: list[str | Path] = [
        pipx,
        "install",
        "--python",
        sys.executable,
        "--pip-args",
        f"--quiet --no-compile -c {CONSTRAINTS}",
        wheel,
    ]
    run(install, tmp_path, environment=environment)
    check_without_extras(tmp_path / "bin" / "anabranch", tmp_path)


def test_the_source_distribution_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    uv = tools.packaging("uv")
    run([uv, "build", "--quiet", "--no-config", "--out-dir", tmp_path, "--python", sys.executable, ROOT], tmp_path)
    (built,) = tmp_path.glob("*.whl")  # from the source distribution
    assert sorted(zipfile.ZipFile(built).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("3.11", marks=LONG),  # that of the other tests of the wheel
        pytest.param("3.12", marks=LONG),
        "3.13",
        "3.14",
    ],
)
def test_each_python_version_installs_it_beside_others_of_our_names_and_runs_a_broker(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    interpreter, uv = find_python(version), tools.packaging("uv")
    home = tmp_path / "environment"
    run([uv, "venv", "--quiet", "--no-config", "--python", interpreter, home], tmp_path)
    install: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-config",
        "--python",
        home / "bin" / "python",
        "-c",
        CONSTRAINTS,
    ]
    run([*install, f"anabranch @ {wheel.as_uri()}", "confluent-kafka", "pytest"], tmp_path)
    run([*install, "--no-deps", "broker", "protocol"], tmp_path)  # of others, and called like our rooms
    (tmp_path / "test_it.py").write_text(PLUGIN_TEST)
    found = run([home / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"], tmp_path)
    assert "1 passed" in found.stdout
