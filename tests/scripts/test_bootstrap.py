import subprocess
import sys
from pathlib import Path

import pytest

from scripts import bootstrap


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose environment is this interpreter."""
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "scripts/bootstrap.py"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(bootstrap, "PYTHON", sys.executable)
    monkeypatch.setattr(bootstrap, "NATIVE", tmp_path / "native")
    monkeypatch.setattr(bootstrap, "NATIVE_STAMP", tmp_path / "native-stamp")
    monkeypatch.setattr(bootstrap, "find_cargo", lambda: None)
    monkeypatch.setattr(bootstrap, "remove_native", lambda: sys.stdout.write("removed\n"))
    (tmp_path / "native" / "src").mkdir(parents=True)
    return tmp_path


def test_an_environment_without_a_stamp_is_not_current(checkout: Path) -> None:
    assert checkout.is_dir()
    assert not bootstrap.is_current()


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "scripts/bootstrap.py"])
def test_a_change_of_what_is_asked_for_is_noticed(checkout: Path, name: str) -> None:
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    assert bootstrap.is_current()
    (checkout / name).write_text("other")
    assert not bootstrap.is_current()


def test_an_environment_whose_interpreter_is_gone_is_not_current(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    monkeypatch.setattr(bootstrap, "PYTHON", str(checkout / "nothing"))
    assert not bootstrap.is_current()


def test_nothing_is_installed_when_nothing_changed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkout.is_dir()
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    monkeypatch.setattr(bootstrap, "install", lambda: pytest.fail("installed again"))
    assert bootstrap.main() == 0


def test_without_cargo_it_says_so_once(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    assert bootstrap.main() == 0
    said = "the native part is not built: there is no cargo; nodes run without it, slower"
    assert capsys.readouterr().out.splitlines() == ["removed", said]
    assert bootstrap.main() == 0
    assert capsys.readouterr().out == ""


def test_the_native_part_is_built_again_when_it_has_changed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        builds.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bootstrap, "find_cargo", lambda: "/usr/bin/cargo")
    monkeypatch.setattr(subprocess, "run", run)
    for content, expected in (("one", 1), ("one", 1), ("two", 2)):
        (checkout / "native" / "src" / "lib.rs").write_text(content)
        bootstrap.make_native()
        assert len(builds) == expected
    assert builds[0][-1] == str(checkout / "native")


PIP_OUTPUT = """\
  error: subprocess-exited-with-error
  x Preparing metadata (pyproject.toml) did not run successfully.
      warning: spurious network error (1 try remaining): [7] Could not connect to server
      error: failed to get `crc32c` as a dependency
error: metadata-generation-failed
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (PIP_OUTPUT, "error: failed to get `crc32c` as a dependency"),
        ("  error: subprocess-exited-with-error\n", "error: subprocess-exited-with-error"),
        ("Killed\n", "see pip's output"),
        (None, "not finished after 900 s"),
    ],
)
def test_a_build_that_fails_is_one_line_and_no_failure(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str | None,
    reason: str,
) -> None:
    def run(command: list[str], *, timeout: float, **_: object) -> subprocess.CompletedProcess[str]:
        if output is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 1, "", output)

    monkeypatch.setattr(bootstrap, "find_cargo", lambda: "/usr/bin/cargo")
    monkeypatch.setattr(subprocess, "run", run)
    bootstrap.make_native()
    bootstrap.make_native()
    assert capsys.readouterr().out.splitlines() == [
        "building the native part",
        "removed",
        f"the native part is not built: {reason}; nodes run without it, slower (rm native-stamp to try again)",
    ]


def test_a_new_environment_is_another_chance_for_the_build(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[str] = []

    def build(cargo: str) -> str:
        builds.append(cargo)
        return "error: no maturin"

    monkeypatch.setattr(bootstrap, "find_cargo", lambda: "/usr/bin/cargo")
    monkeypatch.setattr(bootstrap, "build_native", build)
    monkeypatch.setattr(bootstrap, "make_environment", lambda: None)
    monkeypatch.setattr(bootstrap, "install", lambda: None)
    for expected in (1, 1):
        assert bootstrap.main() == 0
        assert len(builds) == expected
    bootstrap.STAMP.unlink()
    assert bootstrap.main() == 0
    assert len(builds) == 2
