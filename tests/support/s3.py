"""A real S3 server: versitygw on a temporary directory and a free loopback port.

Tests use the fixtures `s3` (the server of the whole run) and `bucket` (an empty bucket on it). It ignores settings of
encryption; `minio_server` is one that encrypts.
"""

import contextlib
import http.client
import itertools
import os
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from anabranch.s3stream.store.s3 import S3Settings
from benchmarks.lab.processes import free_port
from tests.support.tools import minio, missing, versitygw

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


@dataclass(frozen=True, slots=True)
class S3User:
    """A user of a server, who may do what a bucket's policy allows."""

    access_key: str
    secret_key: str


class S3Server:
    """A running server."""

    def __init__(self, endpoint: str, folder: Path, program: Path) -> None:
        self.endpoint = endpoint
        self._program = program
        self._folder = folder
        self._numbers = itertools.count(1)

    def new_bucket(self, *, has_owner: bool = False) -> S3Bucket:
        """Create an empty bucket, by a request if it is to have an owner (the access key), else as a folder."""
        name = f"bucket{next(self._numbers)}"
        folder = self._folder / name
        if has_owner:
            root_client(self.endpoint).create_bucket(Bucket=name)
        else:
            folder.mkdir()
        return S3Bucket(name, self.endpoint, folder)

    def new_user(self, bucket: S3Bucket, policy: str) -> S3User:
        """Create a user for whom the bucket has a policy. The server must have been started with users."""
        user = S3User(f"user-{bucket.name}", "secret-of-a-user")
        access = ("--access", ACCESS_KEY, "--secret", SECRET_KEY)
        admin = [str(self._program), "admin", "--endpoint-url", self.endpoint, *access]
        create = ["create-user", "--role", "user", "--access", user.access_key, "--secret", user.secret_key]
        subprocess.run([*admin, *create], check=True, capture_output=True)
        root_client(self.endpoint).put_bucket_policy(Bucket=bucket.name, Policy=policy)
        return user


def root_client(endpoint: str) -> Any:
    """A blocking client of a server's administrator."""
    return get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


def set_credentials(patch: pytest.MonkeyPatch) -> None:
    """Put the server's credentials into the environment."""
    patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@contextlib.contextmanager
def s3_server(folder: Path, *, has_users: bool = False) -> Iterator[S3Server]:
    """Start the server on `folder`, wait until it answers, stop it at the end. Skips if it is not installed.

    Without users, the only credentials are those of `set_credentials`.
    """
    program = versitygw()
    data = folder / "s3"
    data.mkdir(parents=True)
    try:
        os.setxattr(data, "user.anabranch", b"1")
    except OSError:
        missing(f"a file system with extended attributes under {folder}, which the S3 server needs,")
    users = folder / "users"
    users.mkdir()
    options = ["--iam-dir", str(users)] if has_users else []
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def command(port: int) -> list[str]:
        return [str(program), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", *options, "posix", str(data)]

    with _running(command, environment, folder / "s3.log") as port:
        yield S3Server(f"http://127.0.0.1:{port}", data, program)


@contextlib.contextmanager
def minio_server(folder: Path, *, kms_key: str = "") -> Iterator[S3Bucket]:
    """Start MinIO on `folder` with an empty bucket, stop it at the end. Skips if it is not installed.

    With the name of a key, it encrypts with that key; without one it refuses to encrypt.
    """
    program, data = minio(), folder / "minio"
    environment = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
    environment |= {"MINIO_UPDATE": "off"}
    if kms_key:
        environment["MINIO_KMS_SECRET_KEY"] = f"{kms_key}:{b64encode(bytes(32)).decode()}"

    def command(port: int) -> list[str]:
        return [str(program), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(data)]

    data.mkdir(parents=True)
    with _running(command, environment, folder / "minio.log") as port:
        endpoint = f"http://127.0.0.1:{port}"
        root_client(endpoint).create_bucket(Bucket="bucket")
        yield S3Bucket("bucket", endpoint, data / "bucket")


@contextlib.contextmanager
def _running(command: Callable[[int], list[str]], environment: dict[str, str], log_file: Path) -> Iterator[int]:
    """Run a server at a port of loopback, until the end of the block."""
    with log_file.open("wb") as log:
        process, port = _start(command, environment, log.fileno())
        try:
            yield port
        finally:
            process.kill()  # asked to end, it would wait for clients that keep their connections
            process.wait()


def _start(
    command: Callable[[int], list[str]], environment: dict[str, str], log: int
) -> tuple[subprocess.Popen[bytes], int]:
    """Start on a free port; retry on another if the port was taken in the meantime."""
    for _ in range(ATTEMPTS):
        port = free_port()
        process = subprocess.Popen(command(port), env={**os.environ, **environment}, stdout=log, stderr=log)
        while process.poll() is None:
            if _answers(port):
                return process, port
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
    raise RuntimeError(f"{command(0)[0]} did not start: see its log")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status in {200, 403}
    except OSError:
        return False
    finally:
        connection.close()
