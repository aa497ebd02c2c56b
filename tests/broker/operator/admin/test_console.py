"""Static files of the console, and the probes: what needs no token."""

from pathlib import Path

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs
from yarl import URL

from anabranch.broker.operator.admin.console import CONTENT_SECURITY_POLICY, Console
from anabranch.broker.operator.admin.paths import console_url
from tests.support.node import running_node

READ = "r" * 20


async def test_files_are_served_with_a_policy_and_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "static"
    (folder / "js").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>page")
    (folder / "js" / "main.js").write_text("run()")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr("anabranch.broker.operator.admin.http.Console", lambda: Console(folder))
    async with running_node(tmp_path, admin_read_token=READ) as node, ClientSession() as session:
        base = f"http://{node.ports.admin_address}"
        async with session.get(base, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "/console/")
        async with session.get(base) as answer:
            assert await answer.text() == "<!doctype html>page"
            assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-cache"
            etag = answer.headers["ETag"]
        async with session.get(f"{base}/console/", headers={"If-None-Match": etag}) as answer:
            assert answer.status == 304
        async with session.get(f"{base}/console/js/main.js") as answer:
            assert (await answer.text(), answer.headers["Content-Type"]) == ("run()", "text/javascript; charset=utf-8")
        for path in (
            "%2e%2e/secret",
            "..%2fsecret",
            "%2fetc/passwd",
            "js",
            "js/",
            "%00",
            "index.html%00",
            "js%5cmain.js",
        ):
            async with session.get(URL(f"{base}/console/{path}", encoded=True)) as answer:
                assert answer.status == 404, path
        async with session.post(f"{base}/console/") as answer:
            assert answer.status == 401, "only reading needs no token"


async def test_the_question_whether_a_token_is_needed_is_no_way_to_try_some(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with running_node(tmp_path, admin_read_token=READ) as node, ClientSession() as session:
            url = f"http://{node.ports.admin_address}/console/authentication"
            for headers in ({}, {"Authorization": f"Bearer {READ}"}, {"Authorization": "Bearer wrong"}):
                async with session.get(url, headers=headers) as answer:
                    assert (answer.status, await answer.json()) == (200, {"needs_token": True})
        async with (
            running_node(tmp_path / "open") as node,
            ClientSession() as session,
            session.get(f"http://{node.ports.admin_address}/console/authentication") as answer,
        ):
            assert await answer.json() == {"needs_token": False}
    assert [each for each in logs if each["event"] == "authentication failed"] == []


async def test_a_node_serves_the_page_of_the_package(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path) as node,
        ClientSession() as session,
        session.get(f"http://{node.ports.admin_address}/console/") as answer,
    ):
        assert "<script" in await answer.text()


@pytest.mark.parametrize(
    ("host", "has_tls", "expected"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:9644/console/"),
        ("::1", True, "https://[::1]:9644/console/"),
        ("0.0.0.0", False, "http://kafka-1:9644/console/"),
        ("::", False, "http://kafka-1:9644/console/"),
    ],
)
def test_the_address_is_one_that_a_browser_can_go_to(host: str, has_tls: bool, expected: str) -> None:
    assert console_url(host, 9644, "kafka-1", has_tls=has_tls) == expected


async def test_probes_need_no_token_and_tell_strangers_no_reason(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_read_token=READ) as node, ClientSession() as session:
        base, own = f"http://{node.ports.admin_address}/health", {"Authorization": f"Bearer {READ}"}

        async def ask(path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
            async with session.get(base + path, headers=headers) as answer:
                return answer.status, await answer.text()

        assert await ask("/live") == await ask("/ready") == (200, "ok\n")
        ports = dict(node.ports.clients.ports)
        node.ports.clients.ports.clear()
        assert await ask("/ready", own) == (503, "the node is starting\n")
        node.ports.clients.ports.update(ports)
        node.stopping = True
        assert await ask("/ready") == (503, "not ready: ask with a token for the reason\n")
        assert await ask("/ready", own) == (503, "the node is stopping\n")
        assert await ask("/live") == (200, "ok\n")
