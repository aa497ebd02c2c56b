"""A store that knows which bytes its readers ask for: objects of a folder by HTTP, with ranges, as S3 answers.

It answers HEAD and GET without credentials, and an empty listing. That is enough for the readers of engines.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUCKET = "bucket"
EMPTY = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    f"<Name>{BUCKET}</Name><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
    "</ListBucketResult>"
)


@dataclass
class RangeServer:
    """A running server, and the ranges that were read since `clear`."""

    folder: Path
    port: int = 0
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    """Key, begin and end of each GET."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def clear(self) -> None:
        self.ranges.clear()

    def read_bytes(self, key: str, within: tuple[int, int]) -> tuple[int, int, int]:
        """Return the GETs of an object, their bytes, and those of them that lie within a part of it."""
        own = [(start, end) for name, start, end in self.ranges if name == key]
        inside = sum(max(0, min(end, within[1]) - max(start, within[0])) for start, end in own)
        return len(own), sum(end - start for start, end in own), inside


def _handler(server: RangeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            pass

        def do_HEAD(self) -> None:
            self.answer(has_body=False)

        def do_GET(self) -> None:
            self.answer(has_body=True)

        def answer(self, *, has_body: bool) -> None:
            key = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").strip("/")
            path = server.folder / key
            if not key or not path.is_file():
                listing = EMPTY.encode() if not key else b""
                self.reply(200 if not key else 404, listing if has_body else b"", len(listing))
                return
            size = path.stat().st_size
            wanted = self.headers.get("Range")
            start, end = 0, size
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start = int(first) if first else max(0, size - int(last))
                end = min(size, int(last) + 1) if first and last else size
            headers = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if wanted else {}
            body = b""
            if has_body:
                server.ranges.append((key, start, end))
                with path.open("rb") as file:
                    file.seek(start)
                    body = file.read(end - start)
            self.reply(206 if wanted else 200, body, end - start, headers)

        def reply(self, status: int, body: bytes, size: int, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            found = {
                "Content-Length": str(size),
                "ETag": '"1"',
                "Accept-Ranges": "bytes",
                "Last-Modified": "Tue, 01 Jan 2013 00:00:00 GMT",
                **(headers or {}),
            }
            for name, value in found.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a reader that has what it wants hangs up
                self.wfile.write(body)

    return Handler


@contextlib.contextmanager
def range_server(folder: Path) -> Iterator[RangeServer]:
    """Serve a folder as the bucket `bucket`."""
    server = RangeServer(folder)
    listener = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    listener.daemon_threads = True
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
