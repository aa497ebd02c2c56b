"""Runs tests with the lowest versions that `pyproject.toml` allows, in a separate environment in the tools cache.

uv resolves the base, the extras of a node, and that of tables, to the lowest versions of what they name themselves
(`--resolution lowest-direct`); what these need in turn is as new as it may be. Other packages of the tests are the
pinned ones.
"""

import subprocess
import sys
import tomllib
from collections.abc import Sequence

from anabranch.spark.java import cache_folder
from scripts.environments import ROOT, make_environment, pins, run_tests
from scripts.tools import environment_folder

TEST_PACKAGES = (
    "aiokafka",
    "hypothesis",
    "jsonschema",
    "kafka-python",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "zstandard",
)
TESTS = (
    "tests/anabranch/test_broker.py",
    "tests/anabranch/test_snapshots.py",
    "tests/anabranch/test_time_travel.py",
    "tests/broker/kafka/schemas",
    "tests/broker/node/net",
    "tests/broker/operator/admin/test_on_demand.py",
    "tests/broker/operator/admin/test_metrics.py",
    "tests/broker/operator/cli/test_completion.py",
    "tests/broker/operator/cli/test_output.py",
    "tests/s3stream/store",
    "tests/tables/test_iceberg.py",
    "tests/tables/test_joins.py",
    "tests/tables/test_metrics.py",
    "tests/tables/test_share.py",
)
"""The broker for tests, and something of each extra."""


def extras() -> Sequence[str]:
    """Return the extras that the extra `node` gathers, and that of tables."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (gathered,) = project["optional-dependencies"]["node"]
    names: str = gathered.partition("[")[2].removesuffix("]")
    return [*names.split(","), "tables"]


def lowest_versions() -> str:
    """Return the lowest versions, `NAME==VERSION` a line. Raises CalledProcessError."""
    uv = environment_folder("packaging") / "bin" / "uv"
    command = [str(uv), "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate", "pyproject.toml"]
    command += ["--resolution", "lowest-direct", "--python", sys.executable]
    command += [part for extra in extras() for part in ("--extra", extra)]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def main(arguments: Sequence[str]) -> int:
    """Make the environment, and run pytest with `arguments`. Returns its exit code."""
    place = cache_folder() / "venv-lowest"
    try:
        lowest = lowest_versions()
        constraints = pins(without=[line.partition("==")[0] for line in lowest.splitlines()]) + lowest
        wanted = ["-e", ".[node,tables]", *TEST_PACKAGES]
        make_environment(place, "the lowest versions", constraints, wanted)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    return run_tests(place, [*TESTS, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
