"""Run franz-go's own integration tests against a node, a cluster, or Apache Kafka for comparison; they need Go.

    python -m tests.suites.franz_go [--against node|kafka] [--nodes 3] [--run REGEX]

The tests come with the module, from the Go module proxy, and are built once into the cache (ANABRANCH_CACHE). The
failed ones are compared with `expected/franz-go.txt`, as in `tests.suites.run`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from spark.java import cache_folder
from tests.suites.clients import Suite
from tests.suites.run import expected, plain_broker

MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.3"
SUITE = Suite(
    name="franz-go",
    requirement=f"{MODULE}=={VERSION}",
    needs=(),
    folders=(),
    paths=(),
    environ={},
    node_settings={"group_session_timeout_min_ms": 1000},
)
WITH_BROKER = ("client_test.go", "consumer_test.go", "group_test.go", "produce_request_test.go", "txn_test.go")
"""Files with the tests that need a broker. Those of share groups are not served."""
RECORDS = "100000"
"""Records of the tests that copy a topic: the module's default takes half an hour."""
TIMEOUT = "15m"
OUTCOME = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)


def prepare() -> tuple[Path, str]:
    """Build the tests; returns the program and the pattern of the tests that need a broker."""
    home = cache_folder() / "suites" / f"franz-go-{VERSION}"
    program = home / "kgo.test"
    source = Path(_go("list", "-m", "-f", "{{.Dir}}", f"{MODULE}@{VERSION}", cwd=_download()))
    if not program.is_file():
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / "franz-go"
            shutil.copytree(source, work, copy_function=shutil.copyfile)
            home.mkdir(parents=True, exist_ok=True)
            _go("test", "-c", "-o", str(program), "./pkg/kgo", cwd=work)
    names = re.findall(
        r"^func (Test\w+)", "\n".join((source / "pkg/kgo" / name).read_text() for name in WITH_BROKER), re.MULTILINE
    )
    return program, f"^({'|'.join(name for name in names if 'Share' not in name)})$"


def _download() -> Path:
    """Bring the module into Go's cache; returns a folder to ask for it."""
    folder = cache_folder() / "suites"
    folder.mkdir(parents=True, exist_ok=True)
    _go("mod", "download", f"{MODULE}@{VERSION}", cwd=folder)
    return folder


def _go(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["go", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"go {' '.join(arguments)}: {done.stderr}")
    return done.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run the tests; 1 when one fails against a node that is not in the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.franz_go", description=__doc__.split("\n\n")[0])
    parser.add_argument("--against", choices=("node", "kafka"), default="node")
    parser.add_argument("--nodes", type=int, default=1, metavar="COUNT", help="nodes of the cluster under test")
    parser.add_argument("--run", metavar="REGEX", help="tests to run [default: those that need a broker]")
    wanted = parser.parse_args(arguments)
    program, pattern = prepare()
    with plain_broker(SUITE, wanted.against, wanted.nodes) as bootstrap:
        done = subprocess.run(
            [program, "-test.v", "-test.timeout", TIMEOUT, "-test.run", wanted.run or pattern],
            cwd=program.parent,
            env={**os.environ, "KGO_SEEDS": bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": RECORDS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    (program.parent / f"{wanted.against}-{wanted.nodes}.log").write_text(done.stdout)
    outcomes = {name: outcome for outcome, name in OUTCOME.findall(done.stdout)}
    failed = {name for name, outcome in outcomes.items() if outcome == "FAIL"}
    count = Counter(outcomes.values())
    known = expected(SUITE, wanted.nodes)
    sys.stdout.write(f"franz-go {VERSION}: {count['PASS']} passed, {count['FAIL']} failed, {count['SKIP']} skipped\n")
    for name in sorted(failed):
        sys.stdout.write(f"  failed{'' if name in known else ', NOT EXPECTED'}: {name}\n")
    wrong = not failed <= known or (done.returncode != 0 and not failed)
    return 1 if wrong and wanted.against == "node" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
