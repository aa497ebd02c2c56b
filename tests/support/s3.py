"""A real S3 server for tests: versitygw over a temporary directory, on a free loopback port, with one bucket."""

import contextlib
import http.client
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.tools import missing, versitygw

BUCKET = "anabranch"
ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret-key"
ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server listens, and what opens it."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    region: str
    folder: Path
    """Holds the buckets as directories."""


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start the server over `folder`, wait until it answers, stop it at the end. Skips where it is not installed."""
    program = versitygw()
    data = folder / "s3"
    bucket = data / BUCKET
    bucket.mkdir(parents=True)
    try:
        os.setxattr(bucket, "user.anabranch", b"1")
    except OSError:
        missing(f"a file system with extended attributes under {folder}, which the S3 server needs,")
    with (folder / "s3.log").open("wb") as log:
        process, port = _start(program, data, log.fileno())
        try:
            yield S3Server(f"http://127.0.0.1:{port}", BUCKET, ACCESS_KEY, SECRET_KEY, "us-east-1", data)
        finally:
            process.terminate()
            process.wait(10)


def _start(program: Path, data: Path, log: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start on a free port; again on another when someone else took it in between."""
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
    raise RuntimeError(f"{program} did not start: see the log beside {data}")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status in {200, 403}
    except OSError:
        return False
    finally:
        connection.close()
