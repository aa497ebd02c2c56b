"""Trino's server with one catalog, Iceberg's, at a free port of loopback, and a client of its protocol.

with trino_server(folder, {"iceberg.rest-catalog.uri": f"http://{admin}/iceberg"}) as server:
    rows = server.query('SELECT * FROM lake."default"."orders"')
"""

import base64
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from benchmarks.lab.processes import free_port
from tests.support.java_options import TEMPORARY_FILES
from tests.support.tools import java_25, trino
from tests.support.waiting import wait_until

CATALOG: Final = "lake"
START_S: Final = 180
QUERY_S: Final = 120
JVM: Final = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-modules=jdk.incubator.vector",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dfile.encoding=UTF-8",
    *TEMPORARY_FILES,
)


class TrinoError(Exception):
    """A query has failed; `name` is Trino's name of the error."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class TrinoServer:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def is_ready(self) -> bool:
        """Return whether it takes queries."""
        try:
            return bool(self.query(f"SHOW SCHEMAS FROM {CATALOG}"))
        except (OSError, TrinoError):
            return False

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query: structs and maps as dictionaries, times with their zone. Raises TrinoError.

        Waits for a node: the scheduler of a server that has just started knows of none for a while, though the server
        names itself as active and answers what only its coordinator is asked.
        """
        answers: list[list[dict[str, Any]]] = []

        def answered() -> bool:
            try:
                answers.append(self._query(sql))
            except TrinoError as error:
                if error.name != "NO_NODES_AVAILABLE":
                    raise
            return bool(answers)

        wait_until(answered, "Trino has a node for the query", timeout_s=QUERY_S)
        return answers[0]

    def _query(self, sql: str) -> list[dict[str, Any]]:
        headers = {
            "X-Trino-User": "test",
            "X-Trino-Time-Zone": "UTC",
            "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",  # times would be rounded to milliseconds
        }
        request = urllib.request.Request(f"{self._url}/v1/statement", sql.encode(), headers)
        answer = self._ask(request)
        found: list[list[Any]] = []
        columns: Sequence[Mapping[str, Any]] = ()
        while True:
            if "error" in answer:
                raise TrinoError(answer["error"]["message"], answer["error"]["errorName"])
            columns = answer.get("columns", columns)
            found += answer.get("data", [])
            if "nextUri" not in answer:
                break
            answer = self._ask(answer["nextUri"])
        return [
            {column["name"]: _value(each, column["typeSignature"]) for column, each in zip(columns, row, strict=True)}
            for row in found
        ]

    @staticmethod
    def _ask(request: Any) -> Any:
        with urllib.request.urlopen(request, timeout=QUERY_S) as response:
            return json.loads(response.read())


def _value(value: Any, signature: Mapping[str, Any]) -> Any:
    """Return a value of Trino's JSON as one of Python."""
    if value is None:
        return None
    kind = signature["rawType"]
    inside = [each["value"] for each in signature.get("arguments", ())]
    if kind == "row":
        return {
            each["fieldName"]["name"]: _value(part, each["typeSignature"])
            for each, part in zip(inside, value, strict=True)
        }
    if kind == "array":
        return [_value(each, inside[0]) for each in value]
    if kind == "map":
        return {name: _value(each, inside[1]) for name, each in value.items()}
    if kind == "varbinary":
        return base64.b64decode(value)
    if kind == "decimal":
        return Decimal(value)
    if kind == "date":
        return date.fromisoformat(value)
    if kind.startswith("timestamp"):
        return _time(value.removesuffix(" UTC"))
    return value


def _time(text: str) -> datetime:
    """Return a time with its microseconds."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC) + timedelta(microseconds=int(fraction.ljust(6, "0")[:6]))


@contextmanager
def trino_server(folder: Path, catalog: Mapping[str, str]) -> Iterator[TrinoServer]:
    """Start a server with settings of its catalog, stop it at the end. Skips if it is not installed."""
    home, java = trino(), java_25()
    port = free_port()
    etc = folder / "etc"
    (etc / "catalog").mkdir(parents=True)
    node = {
        "node.environment": "test",
        "node.id": "test",
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
        "node.data-dir": str(folder / "data"),
    }
    config = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": str(port),
        "discovery.uri": f"http://127.0.0.1:{port}",
        "plugin.dir": str(home / "plugin"),
        "catalog.config-dir": str(etc / "catalog"),
        "query.max-memory": "500MB",
        "memory.heap-headroom-per-node": "200MB",
        "log.console-format": "TEXT",
    }
    lake = {"connector.name": "iceberg", "iceberg.catalog.type": "rest", **catalog}
    _write(etc / "node.properties", node)
    _write(etc / "config.properties", config)
    _write(etc / "catalog" / f"{CATALOG}.properties", lake)
    command = [str(java), *JVM, f"-Dconfig={etc / 'config.properties'}"]
    command += [f"-D{name}={value}" for name, value in node.items()]
    command += ["-cp", str(home / "lib" / "*"), "io.trino.server.TrinoServer"]
    log = folder / "trino.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
        try:
            server = TrinoServer(f"http://127.0.0.1:{port}")

            def ready() -> bool:
                assert process.poll() is None, re.sub(r"(?m)^\s+at .*\n", "", log.read_text()[-4000:])
                return server.is_ready()

            wait_until(ready, "Trino takes queries", timeout_s=START_S)
            yield server
        finally:
            process.kill()
            process.wait()


def _write(path: Path, values: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
