"""A client of the JSON API of a node's admin port."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.settings.area import Secret

READ, OPERATE = "r" * 20, "o" * 20
TOKENS: Final = {"admin_read_token": Secret(READ), "admin_operate_token": Secret(OPERATE)}
"""Settings of a node with these two tokens."""


class ApiClient:
    """Sends requests to one node."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def answer(
        self, method: str, path: str, body: object = None, **query: object
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, body and headers of the answer to any request."""
        parameters = {name.rstrip("_"): str(value) for name, value in query.items()}
        async with self.session.request(method, f"/api/v1{path}", params=parameters, json=body) as response:
            return response.status, await response.json(), response.headers

    async def get(self, path: str, **query: object) -> Any:
        """The answer to a GET that succeeds. A trailing underscore of a parameter's name is left out."""
        return await self.ask("GET", path, **query)

    async def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The answer to a request that succeeds."""
        status, answer, _ = await self.answer(method, path, body, **query)
        assert status == 200, answer
        return answer

    async def failure(self, method: str, path: str, body: object = None, **query: object) -> tuple[int, str]:
        """Status and text of a request that fails."""
        status, answer, _ = await self.answer(method, path, body, **query)
        assert status != 200, answer
        assert list(answer) == ["error"]
        return status, answer["error"]


@asynccontextmanager
async def api_client(node: Node, token: str = "") -> AsyncIterator[ApiClient]:
    """A client of a node's admin port."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(f"http://{node.ports.admin_address}", headers=headers) as session:
        yield ApiClient(session)


async def lines_of(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The lines of a stream, until it ends."""
    while line := await response.content.readline():
        if line.strip():
            yield json.loads(line)


async def until_open(api: ApiClient, path: str) -> None:
    """Wait until a node opens one more stream: the places of those who left become free."""
    async with asyncio.timeout(60):
        while True:
            async with api.session.get(f"/api/v1{path}") as response:
                if response.status == 200:
                    return
