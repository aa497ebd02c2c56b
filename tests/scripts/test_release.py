"""Files of a release: versions that agree, notes with links that work elsewhere, and workflows without a slip."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from scripts import release
from scripts.release import ReleaseError, check_remote, find_address, find_version, make_notes
from tests.support import tools

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "https://forge.example/us/anabranch"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files with a version."""
    for name in {*release.VERSIONS, *release.REQUIREMENTS}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_all_files_are_of_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert find_version(ROOT) == project["version"]


@pytest.mark.parametrize("name", sorted({*release.VERSIONS, *release.REQUIREMENTS}))
def test_a_file_of_another_version_is_named(copied: Path, name: str) -> None:
    (copied / name).write_text((copied / name).read_text().replace(find_version(ROOT), "77.7"))
    with pytest.raises(ReleaseError, match=rf"versions differ: .*{name}: 77\.7"):
        find_version(copied)


def test_notes_are_the_section_of_the_version() -> None:
    section = "See [a](docs/a.md#b), [c](https://c), [d](#d).\n"
    changelog = f"# Changelog\n\n## 2.0\n\nNewer.\n\n## 1.0 (today)\n\n{section}\n## 0.9\n\nOlder.\n"
    notes = make_notes(changelog, "1.0", ADDRESS)
    assert notes == f"See [a]({ADDRESS}/blob/v1.0/docs/a.md#b), [c](https://c), [d](#d).\n"
    with pytest.raises(ReleaseError, match=r"no section 1\.1"):
        make_notes(changelog, "1.1", ADDRESS)


def test_the_version_has_notes() -> None:
    assert make_notes((ROOT / "CHANGELOG.md").read_text(), find_version(ROOT), find_address(ROOT))


@pytest.mark.parametrize("remote", ["", f"{ADDRESS}\n", f"{ADDRESS}.git\n", "git@forge.example:us/anabranch.git\n"])
def test_the_remote_may_be_the_address_or_missing(remote: str) -> None:
    check_remote(ADDRESS, remote)


def test_links_to_a_repository_of_others_are_refused() -> None:
    with pytest.raises(ReleaseError, match=r"set \[project\.urls\] there"):
        check_remote(ADDRESS, "https://forge.example/them/anabranch.git")


def test_the_native_part_and_all_links_name_one_repository() -> None:
    address = find_address(ROOT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert all(url.startswith(address) for url in project["project"]["urls"].values())
    native = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text())
    assert native["project"]["urls"] == {"Repository": address}
    (image, page) = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    assert page["replacement"].startswith(f"]({address}/blob/")
    assert image["replacement"].startswith(address.replace("github.com", "raw.githubusercontent.com").join(["](", "/"]))


def test_workflows_have_no_slip() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    done = subprocess.run([tools.actionlint(), "-no-color", *workflows], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
