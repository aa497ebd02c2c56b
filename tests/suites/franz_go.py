"""Run franz-go's own integration tests against a node, a cluster, or Apache Kafka for comparison; they need Go.

    python -m tests.suites.franz_go [--against node|kafka] [--nodes 3] [--run REGEX]

The tests come with the module, from the Go module proxy, and are built once into the cache (ANABRANCH_CACHE). The
failed ones are compared with `expected/franz-go.txt`, as in `tests.suites.run`.
"""

import argparse
import re
import sys
from collections.abc import Sequence

from tests.suites.clients import Suite
from tests.suites.golang import Module
from tests.suites.run import plain_broker

MODULE = Module("franz-go", "github.com/twmb/franz-go", "v1.22.3")
PACKAGE = "./pkg/kgo"
SUITE = Suite(
    name=MODULE.name,
    requirement=f"{MODULE.path}=={MODULE.version}",
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


def tests_with_broker() -> str:
    """Pattern of the tests that need a broker."""
    text = "\n".join((MODULE.source / PACKAGE / name).read_text() for name in WITH_BROKER)
    names = re.findall(r"^func (Test\w+)", text, re.MULTILINE)
    return f"^({'|'.join(name for name in names if 'Share' not in name)})$"


def main(arguments: Sequence[str]) -> int:
    """Run the tests; 1 when one fails against a node that is not in the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.franz_go", description=__doc__.split("\n\n")[0])
    parser.add_argument("--against", choices=("node", "kafka"), default="node")
    parser.add_argument("--nodes", type=int, default=1, metavar="COUNT", help="nodes of the cluster under test")
    parser.add_argument("--run", metavar="REGEX", help="tests to run [default: those that need a broker]")
    wanted = parser.parse_args(arguments)
    MODULE.build([PACKAGE])
    with plain_broker(SUITE, wanted.against, wanted.nodes) as told:
        environ = {"KGO_SEEDS": told["bootstrap"], "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": RECORDS}
        log = f"{wanted.against}-{wanted.nodes}"
        outcomes, as_it_should = MODULE.run(PACKAGE, wanted.run or tests_with_broker(), environ, log)
    good = MODULE.report(outcomes, wanted.nodes) and as_it_should
    return 1 if not good and wanted.against == "node" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
