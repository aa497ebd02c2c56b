"""Any bytes in the head of a request to the admin port are answered with less than 500, and nothing fails."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from tests.broker.operator.admin.test_limits import answer, assert_served
from tests.support.admin_api import READ, TOKENS
from tests.support.node import running_node

HEADERS = (
    "Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Length", "Content-Type", "Cookie", "Expect",
    "Host", "If-Modified-Since", "If-None-Match", "Origin", "Range", "Sec-Fetch-Site", "Transfer-Encoding", "Upgrade",
    "User-Agent", "X-Forwarded-For",
)  # fmt: skip
VALUES = (
    b"\xff", b"Bearer \xff\xfe", b"Bearer " + READ.encode() + b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\x80" * 2000,
    b"",
    b"-1", b"9" * 400, b"[", b"[::1", b"http://",
    b"http://\xff:1", b'a, b; c="', b"%ff%00", b"bytes=-\xff", b'W/"\xff', b"\t",
    b"100-continue", b"chunked\xff", b"text/plain; charset=\xff", b"q=\xff;q=nan", b"=?utf-8?b?\xff?=",
)  # fmt: skip
TARGETS = (
    b"GET /metrics", b"GET /health/ready", b"GET /console/\xff", b"GET /api/v1/topics", b"POST /api/v1/topics",
    b"GET /api/v1/topics/%ff%fe/records?from=%ff&\xff=1", b"GET /api/v1/topics/\xff", b"POST /api/v1/topics?%ff=%ff",
    b"DELETE /api/v1/topics/%00%ed%a0%80", b"GET /\xff?\xff", b"\xff /", b"OPTIONS *",
    b"POST /api/v1/topics/%ff/detach", b"GET /api/v1/status?%", b"GET /api/v1/groups/%ed%a0%80",
    b"DELETE /api/v1/groups/%ff", b"GET /api/v1/compaction/plan?\xed\xa0\x80",
)  # fmt: skip


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


def request_of(target: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([target + b" HTTP/1.1", *headers, b"Connection: close", b"", b""])


async def check(node: Node, requests: Iterable[bytes]) -> None:
    """All are answered with less than 500, and no failure is logged."""
    with capture_logs() as logs:
        answers = [(request, await answer(node, request)) for request in requests]
    wrong = [(request, got) for request, got in answers if not got or int(got.split(b" ", 2)[1]) >= 500]
    assert wrong == []
    assert [line for line in logs if line["log_level"] in {"error", "critical"}] == []


@pytest.mark.slow
async def test_any_bytes_in_a_header_are_answered(node: Node) -> None:
    requests: list[bytes] = []
    for name in HEADERS:
        host = [] if name == "Host" else [b"Host: localhost"]
        headers = [f"{name}: ".encode() + value for value in VALUES]
        targets = (b"GET /console/", b"GET /metrics")
        requests += [request_of(target, *host, header) for target in targets for header in headers]
    await check(node, requests)
    await assert_served(node)


async def test_any_bytes_in_a_token_are_answered(tmp_path: Path) -> None:
    async with running_node(tmp_path, **TOKENS) as node:
        headers = [b"Authorization: " + value for value in VALUES]
        targets = (b"GET /api/v1/topics", b"POST /api/v1/compaction", b"GET /health/ready")
        await check(node, [request_of(target, b"Host: localhost", header) for target in targets for header in headers])


async def test_any_bytes_in_a_target_are_answered(node: Node) -> None:
    body = b"Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n\xff{"
    heads = [target + b" HTTP/1.1\r\nHost: localhost\r\n" for target in TARGETS]
    await check(node, [head + rest for head in heads for rest in (b"X: \xff\r\nConnection: close\r\n\r\n", body)])
