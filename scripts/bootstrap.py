"""Creates `.venv` with everything the project needs; quick when nothing has changed.

Runs on the system's Python with the standard library only. A stamp in the environment holds a hash of everything that
decides what is installed. While it matches, there is nothing to do.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = str(ENVIRONMENT / "bin" / "python")
STAMP = ENVIRONMENT / "anabranch-stamp"
NATIVE = ROOT / "native"
NATIVE_STAMP = ENVIRONMENT / "anabranch-native-stamp"
VERSION_MIN = (3, 11)
PIP_VERSION_MIN = (25, 1)
"""First pip with dependency groups."""
NATIVE_BUILD_S = 900
"""Longest build of the native part: half a minute of processor time, and a download."""


def fingerprint() -> str:
    """Return a hash of the environment's inputs: requirements, pins, interpreter and path."""
    command = [PYTHON, "-c", "import sys; print(sys.version)"]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256(f"{version}{ROOT}\n".encode())
    for name in ("pyproject.toml", "constraints.txt", "scripts/bootstrap.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    """Return whether the environment exists, starts, and was made from the current requirements."""
    try:
        return STAMP.read_text() == fingerprint()
    except (OSError, subprocess.CalledProcessError):
        return False


def make_environment() -> None:
    """Create the virtual environment. Without Debian's python3-venv, use apt or the system's pip."""
    if (
        Path(PYTHON).exists()
        and subprocess.run([PYTHON, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0
    ):
        return
    print(f"creating {ENVIRONMENT} with Python {sys.version.split()[0]}", flush=True)
    with contextlib.suppress(subprocess.CalledProcessError):
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        return
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("this Python has no ensurepip: installing python3-venv with apt-get", flush=True)
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-y", "-qq", "python3-venv"], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        return
    venv.create(ENVIRONMENT, with_pip=False, clear=True)
    subprocess.run([sys.executable, "-m", "pip", "--python", PYTHON, "install", "-q", "pip"], check=True)


def install() -> None:
    """Install the project, its extras and its development tools in one solve, under the pins."""
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
    found = subprocess.run([*pip, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    if tuple(int(part) for part in found.split(".")[:2]) < PIP_VERSION_MIN:
        print(f"upgrading pip {found}", flush=True)
        subprocess.run([*pip, "install", "-q", "--upgrade", "pip"], check=True)
    print("installing the project and its dependencies (pins: constraints.txt)", flush=True)
    quiet = [] if sys.stdout.isatty() else ["-q"]  # it takes minutes: who waits sees what pip does
    wanted = ["-c", "constraints.txt", "-e", ".[all,containers,demo]", "--group", "dev"]
    subprocess.run([*pip, "install", *quiet, *wanted], check=True, cwd=ROOT)


def native_fingerprint() -> str:
    """Return a hash of the sources of the native part."""
    digest = hashlib.sha256()
    for file in sorted([*NATIVE.glob("*.toml"), *NATIVE.glob("src/**/*.rs")]):
        digest.update(f"{file.relative_to(NATIVE)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def find_cargo() -> str | None:
    """Return the path of Rust's package manager."""
    return shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo" / "bin")


def make_native() -> None:
    """Build and install the native part. It may be missing: a node is slower without it, and the same otherwise.

    A build that failed is tried again when the sources or the environment have changed, when there is a cargo for the
    first time, or when the stamp is deleted: offline, each attempt takes up to half a minute. Without a build that fits
    the sources none is installed, because an old one could do something else.
    """
    cargo = find_cargo()
    state = f"{native_fingerprint()} {cargo}"
    if NATIVE_STAMP.exists() and NATIVE_STAMP.read_text() == state:
        return
    problem = "there is no cargo" if cargo is None else build_native(cargo)
    again = "" if cargo is None else f" (rm {NATIVE_STAMP.relative_to(ROOT)} to try again)"
    if problem is not None:
        remove_native()
        print(f"the native part is not built: {problem}; nodes run without it, slower{again}", flush=True)
    NATIVE_STAMP.write_text(state)


def build_native(cargo: str) -> str | None:
    """Build the native part. Returns why that failed, in a line, or None."""
    print("building the native part", flush=True)
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    command += ["--no-deps", "--no-build-isolation", str(NATIVE)]
    search = os.pathsep.join([str(Path(cargo).parent), str(ENVIRONMENT / "bin"), os.environ.get("PATH", "")])
    impatience = {"CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "10"}  # a registry out of reach must not hold up set-up
    environment = {**impatience, **os.environ, "PATH": search}
    try:
        built = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=NATIVE_BUILD_S
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {NATIVE_BUILD_S} s"
    errors = [line.strip() for line in built.stderr.splitlines() if line.strip().lower().startswith("error")]
    specific = [line for line in errors if "subprocess-exited-with-error" not in line]  # pip's own, which comes first
    return None if not built.returncode else next(iter(specific or errors), "see pip's output")


def remove_native() -> None:
    """Remove the native part if there is one."""
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "uninstall", "-q", "-y", "anabranch-native"]
    subprocess.run(command, check=False, capture_output=True)


def main() -> int:
    """Bring `.venv` up to date. Returns the exit code."""
    if sys.version_info < VERSION_MIN:
        print(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]} ({sys.executable})", file=sys.stderr)
        return 1
    if is_current():
        make_native()
        return 0
    try:
        make_environment()
        install()
        NATIVE_STAMP.unlink(missing_ok=True)
        STAMP.write_text(fingerprint())
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    make_native()
    print(f"ready: {ENVIRONMENT}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
