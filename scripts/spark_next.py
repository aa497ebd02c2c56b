"""Runs the Spark tests on the next minor version of Spark, in a separate environment in the tools cache.

The project pins one version of pyspark and supports two minor versions. This script makes an environment with the newer
one under all other pins, fetches its jars, and runs the tests there. Tests of table formats without a release for it
skip themselves.
"""

import subprocess
import sys
from collections.abc import Sequence

from anabranch.spark.java import cache_folder
from scripts.environments import ROOT, make_environment, pins, python_of, run_tests

VERSION = "4.2.0"
UNPINNED = ("pyspark", "py4j")
"""Packages whose version depends on pyspark's."""
TESTS = ("tests/spark", "tests/interop/test_spark_source.py")


def main(arguments: Sequence[str]) -> int:
    """Make the environment, fetch the jars, and run pytest with `arguments`. Returns its exit code."""
    place = cache_folder() / f"venv-spark-{VERSION}"
    wanted = ["-e", ".[postgres,spark,demo]", "--group", "dev", f"pyspark=={VERSION}"]
    try:
        make_environment(place, f"pyspark {VERSION}", pins(UNPINNED), wanted)
        subprocess.run([python_of(place), "-m", "scripts.tools", "java", "spark"], check=True, cwd=ROOT)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    return run_tests(place, [*TESTS, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
