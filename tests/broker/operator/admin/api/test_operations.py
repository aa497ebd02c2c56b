"""Operations that Kafka's protocol does not have: what they answer, and how they are refused."""

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.api import endpoints
from anabranch.s3stream.errors import CatalogUnavailable, NodeUnavailable
from tests.support.admin_api import ApiClient

REFUSALS: tuple[tuple[str, str, dict[str, object], int, str], ...] = (
    ("POST", "/topics/nope/detach", {}, 404, "topic nope does not exist"),
    ("POST", "/topics/t/clone", {}, 400, "name: Field required"),
    ("POST", "/topics/t/clone", {"name": "t"}, 409, "Topic 't' already exists."),
    ("POST", "/detached-topics/t/attach", {}, 404, "No topic 't' is detached."),
    ("POST", "/topics/t/moves", {"to": 7}, 400, "Node 7 is not running."),
    ("GET", "/topics/t/moves", {"to": 1, "partitions": "2"}, 404, "There is no partition t-2."),
    ("GET", "/topics/nope/moves", {"to": 1}, 404, "topic nope does not exist"),
    ("DELETE", "/nodes/1", {}, 409, "node 1 is alive: it answers this"),
    ("DELETE", "/nodes/7", {}, 404, "node 7 is not registered"),
    ("POST", "/nodes/one/fail", {}, 400, "expected a node id, found 'one'"),
    ("POST", "/nodes/7/drain", {}, 400, "Node 7 is not running: it has nothing to be moved."),
    ("POST", "/nodes/1/drain", {}, 400, "No other node could lead the partitions of node 1."),
    ("POST", "/storage/stopped/7/discard", {}, 404, "stream 7 is not stopped"),
)


@pytest.mark.parametrize(("method", "path", "query", "status", "reason"), REFUSALS)
async def test_a_refusal_is_one_line(
    api: ApiClient, method: str, path: str, query: dict[str, object], status: int, reason: str
) -> None:
    assert await api.failure(method, path, **query) == (status, reason)


async def test_parameters_are_checked(api: ApiClient) -> None:
    for query in ({}, {"to": -1}, {"to": 1, "partitions": "0,"}, {"to": 1, "partitions": "a"}, {"to": 1, "other": 1}):
        assert (await api.failure("POST", "/topics/t/moves", **query))[0] == 400, query
    assert (await api.failure("POST", "/nodes/1/give-up", epoch="x"))[0] == 400


async def test_a_state_of_the_cluster_and_an_outage_are_told_apart(
    node: Node, api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status in ((NodeUnavailable("node 2 is draining"), 409), (CatalogUnavailable("no connection"), 503)):

        async def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(node.serving.move_requests, "set_draining", fail)
        assert await api.failure("DELETE", "/nodes/1/drain") == (status, str(error))


async def test_moves_to_a_node_that_leads_already_are_done(api: ApiClient) -> None:
    order = await api.ask("POST", "/topics/t/moves", to=1, partitions="1,0,1")
    assert order == {"to": 1, "topic": "t", "partitions": [1, 0]}
    assert await api.get("/topics/t/moves", to=1) == {"done": [0, 1], "moving": [], "failed": {}}
    assert (await api.get("/nodes/1/drain"))["leads"] == 2


async def test_compaction_has_a_plan_a_run_and_a_state(api: ApiClient) -> None:
    assert await api.get("/compaction/plan") == {"stream_sets": [], "stream_objects": [], "cleanings": []}
    assert (await api.get("/compaction"))["last"] is None
    run = await api.ask("POST", "/compaction")
    assert run["errors"] == []
    assert (await api.get("/compaction"))["last"] == run == (await api.get("/status"))["compaction"]["last"]


async def test_nodes_and_cluster_are_described(node: Node, api: ApiClient) -> None:
    (row,) = (await api.get("/nodes"))["nodes"]
    assert (row["id"], row["state"], row["leads"], row["log"]["node"]) == (1, "UP", 2, 1)
    found = await api.get("/cluster/status")
    assert found["nodes"][0]["log"] == row["log"]
    assert (found["observer"], found["partitions"], found["unavailable"]) == (node.serving.node_id, 2, [])


LONG: tuple[tuple[str, str], ...] = (
    ("GET", "/compaction/plan"),
    ("POST", "/compaction"),
    ("DELETE", "/nodes/7"),
    ("POST", "/nodes/7/fail"),
    ("GET", "/nodes/7/loss"),
    ("POST", "/nodes/7/give-up"),
    ("POST", "/nodes/1/drain"),
    ("DELETE", "/nodes/1/drain"),
    ("POST", "/topics/t/moves?to=1"),
    ("POST", "/topics/nope/detach"),
    ("POST", "/topics/t/clone?name=t"),
    ("POST", "/detached-topics/t/attach"),
    ("POST", "/storage/stopped/7/discard"),
)


async def test_what_may_wait_for_recoveries_moves_and_compaction_has_no_limit(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "ANSWER_TIMEOUT_S", 0)
    assert (await api.failure("GET", "/nodes"))[0] == 504
    limited = []
    for method, path in LONG:
        status, _, _ = await api.answer(method, path)
        if status == 504:
            limited.append((method, path))
    assert not limited


@pytest.mark.parametrize("path", ["/status", "/compact", "/nodes", "/cluster", "/moves", "/topics/detach"])
async def test_nothing_is_beside_the_api(api: ApiClient, path: str) -> None:
    async with api.session.post(path) as answer:
        assert answer.status == 404
        assert await answer.json() == {"error": "there is no such path: see /api/v1/openapi.json"}
