"""Credentials of a schema registry go to its host only."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from anabranch.tables.errors import RegistryError
from anabranch.tables.registry import SchemaRegistry
from tests.spark.pipeline.registry_server import running_registry


@contextmanager
def redirecting_server(status: int, target: str) -> Iterator[str]:
    """A server that answers every request with a redirect to the same path elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with running_registry() as other, redirecting_server(status, other.url) as url:
        other.add("s", "string")
        registry = SchemaRegistry(url, "me:secret")
        with pytest.raises(RegistryError, match=rf"answers {status} to .* points to {other.url}/.*: set the URL"):
            registry.latest("s")
        with pytest.raises(RegistryError, match=rf"answers {status}"):
            registry.by_id(1)
        assert other.requests == []
