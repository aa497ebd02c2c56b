"""A throwaway PostgreSQL server on a free loopback port, for the catalog's contract tests."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.lab.processes import free_port
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
    """A server on a free port that can be stopped and restarted; `new_database` returns an empty database's URL."""

    def __init__(self, folder: Path, home: Path, user: str | None) -> None:
        self._folder = folder
        self._home = home
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._names = (f"test{number}" for number in count(1))

    def start(self) -> None:
        """Start without durability (tests kill nodes, not the database's machine); return when it is ready."""
        options = (
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self._home}",
            "fsync=off",
        )
        settings = [part for option in options for part in ("-c", option)]
        log = self._home / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._folder / "postgres", "-D", self._home / "data", *settings],
                user=self._user,
                cwd=self._home,
                stdout=output,
                stderr=output,
            )
        _wait_ready(self._folder, self.port, self._process, log)

    def stop(self) -> None:
        """Stop it at once, as a crash does; the next start recovers."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait(START_TIMEOUT_S)

    def keep_copy(self) -> None:
        """Copy the stopped server's files, as a standby that is behind from now on."""
        subprocess.run(["cp", "-a", self._home / "data", self._home / "copy"], check=True)

    def put_back(self) -> None:
        """Give the stopped server the files of the copy: it forgets all that was committed since."""
        shutil.rmtree(self._home / "data")
        (self._home / "copy").rename(self._home / "data")

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, template: str = "template1") -> str:
        """Create a database, by default an empty one; returns its URL."""
        name = next(self._names)
        # Files are copied in half the time of pages: it is small, and nothing is flushed.
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    @property
    def log(self) -> Path:
        """File of its output."""
        return self._home / "log"

    def set(self, name: str, value: str) -> None:
        """Change a setting of the running server."""
        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def execute(self, statement: str, *, database: str = "postgres") -> None:
        """Run a statement as the superuser, outside of a transaction."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Create and start a server; stop and remove it at the end."""
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
        server = PostgresServer(folder, home, user)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home)


def _unprivileged(home: Path) -> str | None:
    if os.geteuid() != 0:
        return None
    account = pwd.getpwnam("nobody")
    os.chown(home, account.pw_uid, account.pw_gid)
    return account.pw_name


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
    # The interval of a poll, not a synchronisation: pg_isready decides readiness.
    signal.sigtimedwait([], 0.02)
