"""Build a release and try it: `make release`. Nothing is published; the workflow `release.yml` does that for a tag.

The folder `dist/` has afterwards: `packages/` with source distributions and wheels, of the native part, too, if there
is a cargo; a software bill of materials (CycloneDX) of each environment that was tried; and `notes.md`, the section of
CHANGELOG.md. Each extra is tried in an environment of its own, made from the wheels.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_bytes
from pathlib import Path
from typing import Final

from anabranch.extras import EXTRAS
from anabranch.spark.fetch import FetchError, run
from scripts.bootstrap import find_cargo
from scripts.tools import environment_folder

ROOT: Final = Path(__file__).resolve().parent.parent
VERSIONS: Final[Mapping[str, str]] = {
    "pyproject.toml": r'^version = "(.+)"$',
    "native/pyproject.toml": r'^version = "(.+)"$',
    "native/Cargo.toml": r'^version = "(.+)"$',
    "deploy/helm/anabranch/Chart.yaml": r"^appVersion: (.+)$",
}
"""Pattern of the version in each file that has one."""
REQUIREMENTS: Final[Mapping[str, str]] = {
    "pyproject.toml": r"anabranch-native==([\w.]+)",
    "native/pyproject.toml": r'"anabranch==([\w.]+)"',
}
"""Pattern of the version that each of the two distributions requires of the other."""
LINK: Final = re.compile(r"\]\((?!https?:|#)")
SMALL_TRIAL: Final = "import anabranch.broker.app, anabranch.testing"


class ReleaseError(Exception):
    """The release cannot be made. The text is the one line to show."""


def find_version(root: Path) -> str:
    """Return the version that all files agree on. Raises ReleaseError."""
    found = {}
    for patterns, what in ((VERSIONS, "version"), (REQUIREMENTS, "requirement")):
        for name, pattern in patterns.items():
            match = re.search(pattern, (root / name).read_text(), re.MULTILINE)
            found[f"{what} in {name}"] = match[1] if match else "none"
    if len(set(found.values())) != 1:
        raise ReleaseError("versions differ: " + ", ".join(f"{where}: {each}" for where, each in found.items()))
    return found["version in pyproject.toml"]


def find_address(root: Path) -> str:
    """Return the address of the repository, without a slash at its end."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Repository"]).rstrip("/")


def check_remote(address: str, remote: str) -> None:
    """Check that the remote `origin`, if there is one, is the address of the project. Raises ReleaseError."""
    path = re.sub(r"^(https?://|ssh://)?(git@)?", "", remote.strip()).removesuffix(".git").replace(":", "/")
    if path and path != address.removeprefix("https://"):
        raise ReleaseError(
            f"origin is {remote.strip()}, but pyproject.toml links to {address}: set [project.urls] there"
        )


def make_notes(changelog: str, version: str, address: str) -> str:
    """Return the section of a version, with absolute links. Raises ReleaseError if there is none."""
    match = re.search(rf"^## {re.escape(version)}\b.*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ReleaseError(f"CHANGELOG.md has no section {version}")
    return LINK.sub(f"]({address}/blob/v{version}/", match[1].strip()) + "\n"


def build(packages: Path) -> None:
    """Build source distributions and wheels. Raises FetchError."""
    tools = environment_folder("release") / "bin" / "python"
    run(tools, "-m", "build", "--outdir", packages, ROOT)
    if find_cargo() is None:
        print("  the native part is not built: there is no cargo", flush=True)
        return
    maturin = Path(sys.executable).parent / "maturin"
    where = ("--manifest-path", ROOT / "native" / "Cargo.toml", "--out", packages)
    run(maturin, "build", "--release", *where)
    run(maturin, "sdist", *where)


def check_metadata(packages: Path) -> None:
    """Check metadata, and that the description can be shown. Raises FetchError."""
    run(environment_folder("release") / "bin" / "twine", "check", "--strict", *sorted(packages.iterdir()))


def metadata_of(wheel: Path) -> bytes:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return archive.read(name)


def extras_of(wheel: Path) -> Sequence[str]:
    """Return the extras that a wheel offers."""
    return message_from_bytes(metadata_of(wheel)).get_all("Provides-Extra", [])


def wheel_in(packages: Path) -> Path:
    """Return the wheel of the project."""
    (wheel,) = packages.glob("anabranch-*.whl")
    return wheel


def trials(packages: Path) -> Iterator[str]:
    """Yield what is tried: the base, as an empty text, and each extra whose wheels are there."""
    yield ""
    has_native = any(packages.glob("anabranch_native-*.whl"))
    yield from (each for each in extras_of(wheel_in(packages)) if each != "native" or has_native)


def try_extra(extra: str, packages: Path, sbom: Path) -> None:
    """Install a wheel with an extra into a new environment, use it, and write what is in it. Raises FetchError."""
    wheel = wheel_in(packages)
    uv = environment_folder("packaging") / "bin" / "uv"
    with tempfile.TemporaryDirectory(prefix="anabranch-release-") as folder:
        python = Path(folder) / "bin" / "python"
        run(uv, "venv", "--quiet", "--no-config", "--allow-existing", "--python", sys.executable, folder)
        install = (uv, "pip", "install", "--quiet", "--no-config", "--python", python, "--find-links", packages)
        run(*install, "-c", ROOT / "constraints.txt", f"anabranch{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}")
        run(python.parent / "anabranch", "--version")
        run(python, "-c", SMALL_TRIAL)
        run(python, "-c", "".join(f"import {package}\n" for package in EXTRAS.get(extra, ())))
        write = (environment_folder("release") / "bin" / "cyclonedx-py", "environment", python)
        run(*write, "--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-file", sbom)


def main(arguments: Sequence[str]) -> int:
    """Build, check and try. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder, which is emptied (%(default)s)")
    parser.add_argument("--notes-only", action="store_true", help="check the versions and write the notes, no more")
    options = parser.parse_args(arguments)
    packages = options.out.absolute() / "packages"
    try:
        version, address = find_version(ROOT), find_address(ROOT)
        asked = subprocess.run(
            ["git", "-C", ROOT, "remote", "get-url", "origin"], check=False, capture_output=True, text=True
        )
        check_remote(address, asked.stdout)
        notes = make_notes((ROOT / "CHANGELOG.md").read_text(), version, address)
        shutil.rmtree(options.out, ignore_errors=True)
        packages.mkdir(parents=True)
        (options.out / "notes.md").write_text(notes)
        if options.notes_only:
            return 0
        print(f"anabranch {version}: building", flush=True)
        build(packages)
        check_metadata(packages)
        for extra in trials(packages):
            print(f"  trying {extra or 'the base'}", flush=True)
            try_extra(extra, packages, options.out / f"anabranch-{extra or 'base'}.cdx.json")
    except (ReleaseError, FetchError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    for made in sorted(each for each in options.out.rglob("*") if each.is_file()):
        print(f"  {made.relative_to(options.out.absolute())}  {made.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
