"""The files of the console, a page for browsers: served under /console/ from the package only.

The files are read once, into a table by their paths, so that no path of a request reaches the file system. They hold no
data of the node, and need no token: the page asks for one, and sends it with its requests to the API.
"""

import asyncio
from collections.abc import Iterator, Mapping
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from mimetypes import guess_type
from typing import Final, NamedTuple

from aiohttp import web

from anabranch.broker.operator.admin.paths import CONSOLE_PREFIX

INDEX: Final = "index.html"
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Media types by file extension; the system's tables differ between machines."""


class _File(NamedTuple):
    content: bytes
    content_type: str
    etag: str


class Console:
    """The files of a folder, by default the package's."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("anabranch.broker.operator") / "console" / "static"
        self._files: Mapping[str, _File] | None = None
        """By path below the folder; None: not read yet."""

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Answer with a file."""
        if self._files is None:
            self._files = await asyncio.to_thread(lambda: dict(_read(self._folder, "")))
        found = self._files.get(request.match_info["path"] or INDEX)
        if found is None:
            return web.Response(status=HTTPStatus.NOT_FOUND, text="the console has no such file\n")
        headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "Content-Type": found.content_type,
            "ETag": f'"{found.etag}"',
            "Referrer-Policy": "no-referrer",
        }
        if any(tag.value in {found.etag, "*"} for tag in request.if_none_match or ()):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(body=found.content, headers=headers)

    async def redirect(self, _: web.Request) -> web.StreamResponse:
        """Send a browser to the page."""
        return web.Response(status=HTTPStatus.FOUND, headers={"Location": CONSOLE_PREFIX})


def _read(folder: Traversable, prefix: str) -> Iterator[tuple[str, _File]]:
    if not folder.is_dir():
        return
    for each in folder.iterdir():
        path = prefix + each.name
        if each.is_dir():
            yield from _read(each, f"{path}/")
        else:
            content = each.read_bytes()
            ending = "." + path.rpartition(".")[2]
            content_type = _TYPES.get(ending) or guess_type(path)[0] or "application/octet-stream"
            yield path, _File(content, content_type, sha256(content).hexdigest()[:32])
