"""A throwaway PostgreSQL server on a free loopback port, for the catalog's contract tests."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.support.tools import missing

USER = "anabranch"
START_TIMEOUT_S = 30.0


def programs() -> Path:
    """Folder of `initdb` and `postgres`: on the path, or the newest of Debian's versioned folders."""
    found = shutil.which("initdb")
    if found and (Path(found).resolve().parent / "postgres").is_file():
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    return folders[-1] if folders else missing("PostgreSQL (Debian: postgresql)")


class PostgresServer:
    """A running server; `new_database` makes an empty database and returns its URL."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._names = (f"test{number}" for number in count(1))

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        import psycopg

        name = next(self._names)
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server without durability (the tests kill nodes, not the database's machine); stop and remove it."""
    try:
        import psycopg  # noqa: F401 - only its presence matters here
    except ModuleNotFoundError:
        missing("the package psycopg")
    folder = programs()
    # Not under pytest's tmp_path: the server refuses to run as root, and another user cannot enter that folder.
    home = Path(tempfile.mkdtemp(prefix="anabranch-postgres-"))
    user = _unprivileged(home)
    data = home / "data"
    try:
        command: list[str | Path] = [
            folder / "initdb",
            "-D",
            data,
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "-N",
        ]
        subprocess.run(command, check=True, user=user, cwd=home, capture_output=True, timeout=START_TIMEOUT_S * 2)
        port = _free_port()
        options = (f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={home}", "fsync=off")
        settings = [part for option in options for part in ("-c", option)]
        log = home / "log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [folder / "postgres", "-D", data, *settings], user=user, cwd=home, stdout=output, stderr=output
            )
        try:
            _wait_ready(folder, port, server, log)
            yield PostgresServer(port)
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(START_TIMEOUT_S)
    finally:
        shutil.rmtree(home)


def _unprivileged(home: Path) -> str | None:
    if os.geteuid() != 0:
        return None
    account = pwd.getpwnam("nobody")
    os.chown(home, account.pw_uid, account.pw_gid)
    return account.pw_name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(folder: Path, port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    # pg_isready waits by itself up to -t seconds for an answer, but a refused connection comes back at once.
    command: list[str | Path] = [folder / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port), "-t", "5"]
    attempts = int(START_TIMEOUT_S * 50)
    for _ in range(attempts):
        if server.poll() is not None:
            break
        if subprocess.run(command, check=False).returncode == 0:
            return
        _pause()
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')}")


def _pause() -> None:
    # A poll's interval, not a synchronisation: readiness is what pg_isready says.
    signal.sigtimedwait([], 0.02)
