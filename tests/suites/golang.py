"""Parts of the suites of clients in Go, whose tests come with the module, from the Go module proxy."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from anabranch.spark.java import cache_folder
from tests.suites.run import expected_in

OUTCOME = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)
TIMEOUT = "40m"


@dataclass(frozen=True, slots=True)
class Module:
    """A client in Go. Its tests are built once into the cache (ANABRANCH_CACHE)."""

    name: str
    path: str
    version: str

    @property
    def home(self) -> Path:
        """Folder of its programs and logs in the cache."""
        return cache_folder() / "suites" / f"{self.name}-{self.version}"

    @property
    def source(self) -> Path:
        """Folder of its source, which is brought if need be."""
        self.home.mkdir(parents=True, exist_ok=True)
        go("mod", "download", f"{self.path}@{self.version}", cwd=self.home)
        return Path(go("list", "-m", "-f", "{{.Dir}}", f"{self.path}@{self.version}", cwd=self.home))

    def build(
        self, packages: Sequence[str], *flags: str, mended: Mapping[str, tuple[str, str]] = MappingProxyType({})
    ) -> None:
        """Build the tests of packages into `home`, with replacements in files (`{}` is what is replaced)."""
        source = self.source
        if not all(self.program(package).is_file() for package in packages):
            with tempfile.TemporaryDirectory() as folder:
                work = Path(folder) / "source"
                shutil.copytree(source, work, copy_function=shutil.copyfile)
                for name, (old, new) in mended.items():
                    text = (work / name).read_text()
                    assert old in text, f"{name} of {self.name} has changed"
                    (work / name).write_text(text.replace(old, new.format(old)))
                for package in packages:
                    go("test", "-mod=mod", *flags, "-c", "-o", str(self.program(package)), package, cwd=work)

    def program(self, package: str) -> Path:
        """The tests of a package."""
        return self.home / f"{package.removeprefix('./').replace('/', '-').replace('.', 'main')}.test"

    def run(self, package: str, pattern: str, environ: Mapping[str, str], log: str) -> tuple[dict[str, str], bool]:
        """Run tests; returns the outcome (PASS, FAIL or SKIP) of each, and True if the program ended as it should."""
        command: list[str | Path] = [self.program(package), "-test.v", "-test.timeout", TIMEOUT, "-test.run", pattern]
        with (self.home / f"{log}.log").open("w") as output:
            done = subprocess.run(
                command,
                cwd=self.source / package,  # where its files with data are
                env={**os.environ, **environ},
                stdout=output,
                stderr=output,
                check=False,
            )
        outcomes = {name: outcome for outcome, name in OUTCOME.findall((self.home / f"{log}.log").read_text())}
        return outcomes, done.returncode == (1 if "FAIL" in outcomes.values() else 0)  # 2 after a panic

    def report(self, outcomes: Mapping[str, str], nodes: int) -> bool:
        """Print the counts and the failed tests; returns True if all of these are in `expected`."""
        failed = {name for name, outcome in outcomes.items() if outcome == "FAIL"}
        known = expected_in(self.name, nodes)
        count = Counter(outcomes.values())
        counts = f"{count['PASS']} passed, {count['FAIL']} failed, {count['SKIP']} skipped"
        sys.stdout.write(f"{self.name} {self.version}: {counts}\n")
        for name in sorted(failed):
            sys.stdout.write(f"  failed{'' if name in known else ', NOT EXPECTED'}: {name}\n")
        for name in sorted(known & outcomes.keys() - failed):
            sys.stdout.write(f"  does not fail any more: {name}\n")
        return failed <= known


def go(*arguments: str, cwd: Path, **environ: str) -> str:
    """Run a command of Go; returns its output."""
    command = ["go", *arguments]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"go {' '.join(arguments)}: {done.stderr}")
    return done.stdout.strip()


def go_on_in_own_network(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run a module of this package instead of this program, in a network where all ports are free. Needs root."""
    inside = 'ip link set lo up && exec "$@"'
    command = ["unshare", "--net", "sh", "-c", inside, "sh", sys.executable, "-m", module, "--inside", *arguments]
    os.execvp(command[0], command)
