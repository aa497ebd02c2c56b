"""A real S3 server: versitygw on a temporary directory and a free loopback port.

Tests use the fixtures `s3` (the server of the whole run) and `bucket` (an empty bucket on it).
"""

import contextlib
import http.client
import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from s3stream.store.s3 import S3Settings
from tests.support.tools import missing, versitygw

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret-key"
ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """Address and directory of a bucket."""

    name: str
    endpoint: str
    folder: Path
    """Folder of the objects' files."""

    def settings(self) -> S3Settings:
        """Settings of a store in the bucket."""
        return S3Settings(self.name, self.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)

    def node_settings(self) -> dict[str, object]:
        """Settings of a node whose objects are in the bucket; the node also needs `set_credentials`."""
        return {"objects_store": "s3", "objects_bucket": self.name, "objects_endpoint": self.endpoint}


class S3Server:
    """A running server."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.endpoint = endpoint
        self._folder = folder
        self._numbers = itertools.count(1)

    def new_bucket(self) -> S3Bucket:
        """Create an empty bucket."""
        name = f"bucket{next(self._numbers)}"
        folder = self._folder / name
        folder.mkdir()
        return S3Bucket(name, self.endpoint, folder)


def set_credentials(patch: pytest.MonkeyPatch) -> None:
    """Put the server's credentials into the environment."""
    patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start the server on `folder`, wait until it answers, stop it at the end. Skips if it is not installed."""
    program = versitygw()
    data = folder / "s3"
    data.mkdir(parents=True)
    try:
        os.setxattr(data, "user.anabranch", b"1")
    except OSError:
        missing(f"a file system with extended attributes under {folder}, which the S3 server needs,")
    with (folder / "s3.log").open("wb") as log:
        process, port = _start(program, data, log.fileno())
        try:
            yield S3Server(f"http://127.0.0.1:{port}", data)
        finally:
            process.terminate()
            process.wait(10)


def _start(program: Path, data: Path, log: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start on a free port; retry on another if the port was taken in the meantime."""
    for _ in range(ATTEMPTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        arguments = [str(program), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", "posix", str(data)]
        process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log)
        while process.poll() is None:
            if _answers(port):
                return process, port
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
    raise RuntimeError(f"{program} did not start: see the log next to {data}")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status in {200, 403}
    except OSError:
        return False
    finally:
        connection.close()
