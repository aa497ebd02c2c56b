"""The node that leads the schemas is killed while clients register some: all that were acknowledged keep their ids."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.node import NodeProcess
from tests.support.node_processes import node_processes

CLIENTS = 4
SCHEMAS = 30
"""Schemas of each client."""
TIMEOUT_S = 60


def ask(node: NodeProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    host, _, port = node.admin.removeprefix("http://").rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def text_of(number: int) -> str:
    return json.dumps({"type": "fixed", "name": "F", "size": number}, separators=(",", ":"))


class Registrar:
    """Clients that register schemas of subjects of their own, again and again until each is acknowledged."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self.acked: dict[int, int] = {}
        """Id of each schema, by its number."""
        self.refused: set[int] = set()
        """Error codes that were answered meanwhile."""
        self.has_begun = threading.Event()

    def run(self, client: int) -> None:
        for number in range(client * SCHEMAS, (client + 1) * SCHEMAS):
            path = f"/schema-registry/subjects/s{number}/versions"
            while True:
                status, answer = ask(self._node, "POST", path, {"schema": text_of(number)})
                if status == 200:
                    break
                self.refused.add(answer["error_code"])
            self.acked[number] = answer["id"]
            if len(self.acked) >= SCHEMAS:
                self.has_begun.set()


def leader_id(node: NodeProcess) -> int:
    status, found = ask(node, "GET", "/api/v1/topics/_schemas")
    assert status == 200, found
    leader: int = found["partitions"][0]["leader"]
    return leader


def test_a_takeover_loses_no_schema_and_gives_no_id_twice(tmp_path: Path) -> None:
    with node_processes(tmp_path, 2, f"sqlite:///{tmp_path}/catalog.db", cluster_internal_port=0) as nodes:
        assert ask(nodes[0], "POST", "/schema-registry/subjects/s/versions", {"schema": '"int"'}) == (200, {"id": 1})
        leader, survivor = nodes if leader_id(nodes[0]) == 1 else reversed(nodes)
        registrar = Registrar(survivor)
        with ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(registrar.run, client) for client in range(CLIENTS)]
            assert registrar.has_begun.wait(TIMEOUT_S)
            leader.kill9()
            for each in running:
                each.result(TIMEOUT_S)
        assert leader_id(survivor) == survivor.settings["node_id"]
        assert len(registrar.acked) == CLIENTS * SCHEMAS
        assert len({1, *registrar.acked.values()}) == CLIENTS * SCHEMAS + 1
        assert all(code // 100 == 500 for code in registrar.refused), registrar.refused
        leader.start()
        for node in nodes:
            for number, schema_id in registrar.acked.items():
                found = ask(node, "GET", f"/schema-registry/schemas/ids/{schema_id}")
                assert found == (200, {"schema": text_of(number)})
