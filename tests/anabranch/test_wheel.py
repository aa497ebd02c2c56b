"""The wheel, in an environment without the checkout. Its dependencies are those of the tests' environment."""

import re
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from anabranch.extras import EXTRAS
from scripts.release import metadata_of
from tests.support.wheel import PLUGIN_TEST, run

ROOT = Path(__file__).parents[2]
CONSOLE = "broker/operator/console/static"
BASE = ("click", "cramjam", "crc32c", "sqlalchemy", "structlog")
ROOMS = ("broker", "compaction", "protocol", "s3stream", "spark", "tables", "wal")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the programs of an environment with the wheel in it."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    run(
        [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-compile", str(wheel)],
        home,
    )
    (packages,) = home.glob("lib/python3*/site-packages")
    # Path files are not read in directories that are added like this, so the checkout is not found through them.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return home / "bin"


def test_it_holds_one_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = {name.partition("/")[0] for name in names}
    assert {name for name in found if not name.endswith(".dist-info")} == {"anabranch"}
    assert "anabranch/py.typed" in names
    assert "anabranch/spark/log4j2.properties" in names
    assert len(names) == len(set(names))
    assert not [name for name in names if "/test_" in name or "__pycache__" in name]
    assert {name for name in names if name.startswith(f"anabranch/{CONSOLE}")} == {
        f"anabranch/{path.relative_to(ROOT)}" for path in (ROOT / CONSOLE).rglob("*") if path.is_file()
    }


def test_it_offers_what_the_base_lacks_as_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    wanted = metadata.get_all("Requires-Dist", [])
    assert {*EXTRAS, "all", "demo", "native", "node"} == set(metadata.get_all("Provides-Extra", []))
    assert len([each for each in wanted if "extra ==" not in each]) == len(BASE)
    assert [each for each in wanted if each.startswith("psycopg") and "extra == 'postgres'" in each]
    assert [each for each in wanted if each.startswith("opentelemetry-sdk") and "extra == 'otel'" in each]
    assert [each for each in wanted if each.startswith("pyspark") and "extra == 'spark'" in each]


def test_the_description_on_a_package_index_has_absolute_links(wheel: Path) -> None:
    description = str(message_from_bytes(metadata_of(wheel)).get_payload())
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert len(links) > 20
    assert not [link for link in links if not link.startswith("https://")]
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", description)
    assert images
    assert all("raw.githubusercontent.com" in image and "HFPR" not in image for image in images)


def test_commands_and_plugin_work_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = [str(installed / "python"), "-c", "import anabranch.broker.app; print(anabranch.broker.app.__file__)"]
    assert str(installed.parent) in run(where, tmp_path).stdout
    assert run([str(installed / "anabranch"), "--version"], tmp_path).stdout.startswith("anabranch, version ")
    for command in ("serve", "dev", "topic", "compact", "spark"):
        assert "Usage: anabranch" in run([str(installed / "anabranch"), command, "--help"], tmp_path).stdout
    (tmp_path / "test_it.py").write_text(PLUGIN_TEST)
    found = run([str(installed / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"], tmp_path)
    assert "1 passed" in found.stdout


def test_modules_of_the_user_may_have_the_names_of_rooms(installed: Path, tmp_path: Path) -> None:
    for name in ROOMS[::2]:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    for name in ROOMS[1::2]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    run([str(installed / "python"), "-m", "anabranch", "--version"], tmp_path)
    mine = "".join(f"import {name}\nassert {name}.MINE\n" for name in ROOMS)
    (tmp_path / "test_it.py").write_text(mine + PLUGIN_TEST)
    found = run([str(installed / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"], tmp_path)
    assert "1 passed" in found.stdout
