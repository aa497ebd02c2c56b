"""Run the tests of @kafkajs/confluent-schema-registry against a node's registry; they need Node.js and npm.

    python -m tests.suites.kafkajs_registry [--run REGEX]

The tests come from the client's repository, as its package has none. ANABRANCH_SUITE_SOURCES may name a folder with a
checkout under `kafkajs-registry`. The failed ones are compared with `expected/kafkajs-registry.txt`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.suites.clients import Suite
from tests.suites.run import expected_in, fetch, home_of, plain_broker

SUITE = Suite(
    name="kafkajs-registry",
    requirement="kafkajs-registry==4.0.8",
    needs=(),
    folders=(),
    paths=(),
    environ={},
    repository="https://github.com/kafkajs/confluent-schema-registry",
    tag="v4.0.8",
)
THEIRS = "http://localhost:8982"
"""Address of the suite's own registry, which its files name."""
LEFT_OUT = "avdlToAVSC"
"""Tests that run a compiler of Avro's IDL in a container."""


def prepare() -> Path:
    """Bring the source with its dependencies; returns its folder."""
    home = home_of(SUITE)
    if not (home / "ready").is_file():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        fetch(SUITE, Path(sys.executable), home / "source")
        install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(install, cwd=home / "source", check=True)
        (home / "ready").touch()
    return home / "source"


def run(source: Path, registry: str, pattern: str) -> list[tuple[str, str]]:
    """Run the tests in a copy of the source that names our registry; returns name and outcome of each."""
    with tempfile.TemporaryDirectory(prefix="anabranch-suite-") as folder:
        work, outcomes = Path(folder) / "work", Path(folder) / "outcomes.json"
        shutil.copytree(source, work, ignore=shutil.ignore_patterns("node_modules"))
        (work / "node_modules").symlink_to(source / "node_modules")
        for file in work.glob("src/**/*.ts"):
            file.write_text(file.read_text().replace(THEIRS, registry))
        command = ["npx", "jest", "--runInBand", "--json", f"--outputFile={outcomes}", "-t", pattern]
        with (source.parent / "node.log").open("w") as log:
            command += ["--testPathIgnorePatterns", "/node_modules/", LEFT_OUT]
            subprocess.run(command, cwd=work, stdout=log, stderr=log, check=False)
        found = json.loads(outcomes.read_text())
    return [
        (f"{Path(file['name']).name}: {' '.join(test['fullName'].split())}", test["status"])
        for file in found["testResults"]
        for test in file["assertionResults"]
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the tests; 1 when one fails that is not in the list, or none has run."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.kafkajs_registry", description=__doc__.split("\n")[0])
    parser.add_argument("--run", metavar="REGEX", default=".", help="tests to run [default: all]")
    wanted = parser.parse_args(arguments)
    source = prepare()
    with plain_broker(SUITE, "node", 1) as told:
        outcomes = run(source, told["registry"], wanted.run)
    count = Counter(outcome for _, outcome in outcomes)
    known, failed = expected_in(SUITE.name, 1), {name for name, outcome in outcomes if outcome == "failed"}
    counted = f"{count['passed']} passed, {count['failed']} failed, {count['pending']} skipped"
    sys.stdout.write(f"{SUITE.name}: {counted}\n")
    for test in sorted(failed):
        sys.stdout.write(f"  failed{'' if test in known else ', NOT EXPECTED'}: {test}\n")
    return 0 if count["passed"] and failed <= known else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
