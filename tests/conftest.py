"""Fixtures and settings that all tests share."""

import gc
import itertools
import os
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog

from tests.support.java_options import TEMPORARY_FILES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.postgres import PostgresServer
    from tests.support.s3 import S3Bucket, S3Server

# Imports and collecting tests create many objects and no cycles: until the tests run, collections of garbage would take
# a sixth of the time.
gc.disable()

# Machines are shared and slow at times: the duration of an example says nothing about the code.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("fast", deadline=None, max_examples=25)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# By default structlog renders an exception with rich, all locals included: a tenth of a second or more for each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

QUICK_JVM = (
    "-XX:+UseSerialGC -Xss4m -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing "
    f"-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:MetaspaceSize=256m {' '.join(TEMPORARY_FILES)}"
)
"""For a JVM that lives for minutes at most: what its better compiler would save, it would cost.

The default size of the code cache with one compiler is so small that it would be swept again and again. Spark's classes
need not be verified, and as many of them are loaded, each step of the default size would collect all garbage.
"""
os.environ |= dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), QUICK_JVM)  # drivers of commands, too
QUICK_SQL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Compiling and explaining queries over a few rows takes longer than running them, and so does noting at each use of a
column which line of Python it is.

Commands that tests start do all of that.
"""
SPARK_TIMEOUT_S = 900
FAILED: pytest.StashKey[bool] = pytest.StashKey()
"""True for a test that has failed, in its set-up or clean-up too."""


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """The PostgreSQL server of a test run; each test takes new databases of it. Skipped where it is not installed."""
    from tests.support.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    """The S3 server of a test run; each test takes new buckets of it. Skipped where it is not installed."""
    from tests.support.s3 import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["off", "require"])
def native(request: pytest.FixtureRequest) -> "Iterator[None]":
    """Run the test twice: in Python alone, and with the native part. Skipped where that is not built."""
    from tests.support.native import native_mode

    with native_mode(request.param):
        yield


@pytest.fixture
def bucket(s3: "S3Server", monkeypatch: pytest.MonkeyPatch) -> "S3Bucket":
    """An empty S3 bucket, with its credentials in the environment."""
    from tests.support.s3 import set_credentials

    set_credentials(monkeypatch)
    return s3.new_bucket()


@pytest.fixture(scope="session")
def aws_credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File in which Spark's tasks look for S3 credentials; a test writes them into it."""
    return tmp_path_factory.mktemp("aws") / "credentials"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, aws_credentials: Path) -> "Iterator[SparkSession]":
    """The one Spark session of a test run; skipped (or failed, where tools are required) without Java or jars."""
    from anabranch.spark.jars import TABLE_JARS, all_jars, cached, installed_spark_version, spark_line
    from anabranch.spark.session import DRIVER_OPTIONS, build_session
    from tests.support import tools
    from tests.support.java_names import remembered_names
    from tests.support.local_files import local_files

    tools.java()
    version = installed_spark_version()
    if cached(all_jars(version), version) is None:
        tools.missing("Spark's Kafka source, table formats and S3")
    folder: Path = tmp_path_factory.mktemp("spark")
    settings = {
        DRIVER_OPTIONS: f"-Dderby.system.home={folder}",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        **QUICK_SQL,
        # Delta reads its own log in 50 tasks by default.
        "spark.databricks.delta.snapshotPartitions": "1",
        **local_files(),
    }
    formats = list(TABLE_JARS[spark_line(version)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(aws_credentials))  # Python workers have the JVM's environment
        session = build_session(
            "anabranch tests",
            master="local[2]",
            settings=settings,
            table_formats=formats,
            s3=True,
            jdbc_url="jdbc:postgresql:",
        )
    with remembered_names():
        yield session
    with drop_sockets_of_py4j():
        session.stop()


@contextmanager
def drop_sockets_of_py4j() -> Iterator[None]:
    """Collect the sockets that Spark's bridge leaves to the garbage collector, before a stricter test collects them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep what a failed test, or Spark's bridge, has left open from failing a later test."""
    if item.get_closest_marker("spark") is None:
        result = yield
    else:
        with drop_sockets_of_py4j():
            result = yield
    if item.stash.get(FAILED, False):
        from tests.support.leftovers import discard_leftovers

        discard_leftovers()
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fast`, for `make test-fast`."""
    parser.addoption("--fast", action="store_true", help="leave out tests with a JVM, a server, a browser or a build")


def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis try fewer examples with `--fast`."""
    if config.getoption("--fast"):
        hypothesis.settings.load_profile("fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests of the longest folders first."""
    if config.getoption("--fast"):
        slow = [item for item in items if not is_fast(item)]
        config.hook.pytest_deselected(items=slow)
        items[:] = filter(is_fast, items)
    items.sort(key=lambda item: LONG.index(folder) if (folder := _folder(item)) in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """Do what is done once for all tests.

    What was imported for good is kept out of collections of garbage: a twelfth of the fast tests' processor time. It is
    not collected before: one collection of it takes a second, and finds little.
    """
    from tests.support.quick import copy_schema, handle_interrupts, share_compiled_statements

    share_compiled_statements()
    copy_schema()
    handle_interrupts()
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave slow folders out with `--fast`: their imports alone take seconds."""
    tests = config.rootpath / "tests"
    is_slow = collection_path.is_relative_to(tests) and str(collection_path.relative_to(tests)) in SLOW
    return True if is_slow and config.getoption("--fast") else None


def is_fast(item: pytest.Item) -> bool:
    """Return whether a test starts no JVM, server, browser or build, and takes about a second at most."""
    if any(item.get_closest_marker(name) for name in ("spark", "interop", "slow", "server", "root")):
        return False
    return SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


def _folder(item: pytest.Item) -> str:
    """Return the folder below `tests` that a test is in, or the name of its file there."""
    return item.nodeid.partition("::")[0].split("/")[1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the state of nodes that a timed-out test shares with others; a test's own nodes do so when they end."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    if call.excinfo is not None:
        from tests.support.node import NodeProcess, is_test_timeout

        if is_test_timeout(call.excinfo.value):
            report.sections += [("a node", node.explain()) for node in NodeProcess.alive]
    return report


LONG = ("spark", "differential", "interop", "chaos", "faults", "simulation")
"""Folders that take longest: they come first, so that no worker is left with one of them at the end."""
SLOW = frozenset(
    {
        *LONG,
        "console",
        "suites",
        "broker/operator/cli",
        "broker/cluster/handover",
        "broker/cluster/membership",
    }
)
"""Folders that `--fast` leaves out."""
SERVERS = frozenset({"postgres", "s3", "servers", "spark", "users_bucket", "wheel"})
"""Fixtures that start a process."""
SHARING = frozenset({"console", "differential"})
"""Folders whose tests share a browser or brokers of Apache Kafka: one worker runs all of them."""
CLIENTS = frozenset({"faults", "interop"})
"""Folders with kafka-python, which leaves the socket of an attempt to connect that it cancels."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let one worker run the tests of a file, and those that share one of two Spark sessions.

    Spark has more time. Warnings about the sockets that Spark's bridge leaves are ignored in Spark tests.
    """
    folder = _folder(item)
    if "spark" in getattr(item, "fixturenames", ()):
        group = "spark-pipeline" if item.path.parent.name == "pipeline" else "spark"
    elif "wheel" in getattr(item, "fixturenames", ()):
        group = "wheel"
    else:
        group = folder if folder in SHARING else item.nodeid.partition("::")[0]
    item.add_marker(pytest.mark.xdist_group(group))
    if folder in CLIENTS:
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <(socket|ssl):ResourceWarning"))
    if item.get_closest_marker("spark") is None:
        return
    item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a node in a separate process that all Spark tests of a run share; each test creates its own topics."""
    from tests.support.node import NodeProcess

    with NodeProcess(tmp_path_factory.mktemp("node"), wal_capacity_bytes=64 << 20) as node:
        yield node.bootstrap
        assert node.terminate() == 0


@pytest.fixture(scope="session")
def _topic_names() -> Iterator[str]:
    return (f"topic-{number}" for number in itertools.count())


@pytest.fixture
def topic(servers: str, _topic_names: Iterator[str]) -> str:
    """A new topic of three partitions."""
    from tests.support.events import create_topic

    name = next(_topic_names)
    create_topic(servers, name, 3)
    return name
