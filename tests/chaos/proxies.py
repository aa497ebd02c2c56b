"""The proxies of a cluster, in a process of their own: one to PostgreSQL and one to the S3 server for each node.

Clients work in threads of the test's process. There a proxy could not keep up with them, and the garbage collector may
run in its thread and wait for a client's end.

    python -m tests.chaos.proxies POSTGRES_URL S3_URL COUNT

prints the addresses as one line of JSON. Then each line of its input, `NUMBER catalog|store WEATHER`, is answered with
a line. It ends when its input does.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Final

from tests.support.fault_proxy import PASS, Fault, Request, fault_proxy
from tests.support.postgres_proxy import LossyServer, lossy_server

AWAY: Final = Fault(reset_before=True, reset=True)
LOST: Final = Fault(lose_answer=True, reset=True)
LOST_EVERY: Final = 3


class StoreProxy:
    """Weather between a node and the S3 server."""

    def __init__(self) -> None:
        self.weather = "clear"

    def decide(self, request: Request) -> Fault:
        """Treat a request by the weather: `clear`, `away`, or `lossy`, which loses every third answer."""
        if self.weather == "away":
            return AWAY
        return LOST if self.weather == "lossy" and request.number % LOST_EVERY == 0 else PASS


def set_catalog(proxy: LossyServer, weather: str) -> None:
    """Let a node reach PostgreSQL (`clear`), or not (`away`)."""
    proxy.refusing = weather == "away"
    if proxy.refusing:
        proxy.reset_all()


async def serve(postgres: str, s3: str, count: int) -> None:
    """Serve until the input ends."""
    async with AsyncExitStack() as stack:
        catalogs = [await stack.enter_async_context(lossy_server(postgres)) for _ in range(count)]
        stores = [StoreProxy() for _ in range(count)]
        urls = [await stack.enter_async_context(fault_proxy(s3, each.decide)) for each in stores]
        say(json.dumps({"catalogs": [each.url for each in catalogs], "stores": urls}))
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            number, what, weather = int(line[0]), line[1], line[2]
            if what == "catalog":
                set_catalog(catalogs[number], weather)
            else:
                stores[number].weather = weather
            say("done")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Proxies:
    """The process, from the outside. Nodes have the numbers 1, 2, ..."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        addresses: Mapping[str, list[str]] = json.loads(self._hear())
        self.catalogs = dict(enumerate(addresses["catalogs"], 1))
        """URL of the catalog for each node."""
        self.stores = dict(enumerate(addresses["stores"], 1))
        """Endpoint of the S3 server for each node."""

    def set(self, what: str, weather: str, *node_ids: int) -> None:
        """Change the weather before the `catalog` or the `store` of some nodes, by default of all."""
        for node_id in node_ids or self.catalogs:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{node_id - 1} {what} {weather}\n")
            self._process.stdin.flush()
            assert self._hear() == "done\n"

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def proxies(postgres: str, s3: str, count: int) -> Iterator[Proxies]:
    """Run the proxies of some nodes in a process of their own."""
    command = [sys.executable, "-m", "tests.chaos.proxies", postgres, s3, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Proxies(process)
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
