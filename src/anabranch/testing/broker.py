"""A broker process that lives as long as a test needs it."""

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from anabranch.broker.operator.dev.folder import MemoryFolder
from anabranch.extras import MissingExtra, install_command
from anabranch.testing.security import Security

START_TIMEOUT_S: Final = 60.0
ORDER_TIMEOUT_S: Final = 30.0
BAD_SETTING: Final = 2
"""Exit code of a broker that cannot start with its settings."""
PART_BYTES: Final = 64 * 1024
LOG_BYTES_MAX: Final = 64 * 1024
"""Part of the broker's log that is shown: its end."""


GROUP_POLL_S: Final = 0.05
SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic, as it is stored."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class BrokerError(RuntimeError):
    """The broker does not start, or does not carry out a request. The text ends with its log, if there is one."""


class Broker:
    """A broker on a free port of 127.0.0.1, in a process of its own. Its data is in memory, and gone after `close`.

    It is a whole Anabranch: any Kafka client can use it. `settings` are those of a node, by name
    (`{"topic.num_partitions": 3}`). With `users`, passwords by name, clients authenticate themselves by SCRAM or PLAIN;
    with `tls`, they connect by TLS. It starts when it is entered as a context manager, or by `start`.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
    ) -> None:
        self._settings = dict(settings or {})
        self._security = Security(users or {}, tls=tls)
        self._folder: MemoryFolder | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._has_faults = False
        self._port = 0
        self._admin_port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; it stays the same after `kill` and `start`."""
        self._check_running()
        return f"127.0.0.1:{self._port}"

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """Return what a client needs to connect, by the names that librdkafka has for it.

        They are the addresses, and with TLS or users the protocol, the file of the certificate (`ssl.ca.location`), and
        name and password of a user, by default the first.
        """
        servers = self.bootstrap_servers
        if user is not None and user not in self._security.users:
            raise BrokerError(f"the broker has no user {user!r}")
        assert self._folder is not None, "it runs"
        return {"bootstrap.servers": servers, **self._security.client_settings(self._folder.path, user)}

    @property
    def admin_url(self) -> str:
        """URL of the admin port, with /api/v1/status and /metrics. Raises BrokerError without the extra `console`."""
        self._check_running()
        if not self._admin_port:
            raise BrokerError(f"the broker has no admin port: {install_command('console')}")
        return f"http://127.0.0.1:{self._admin_port}"

    @property
    def is_running(self) -> bool:
        """True while its process runs, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_healthy(self) -> bool:
        """True while it runs without a fault."""
        return self.is_running and not self._is_paused and not self._has_faults

    @property
    def pid(self) -> int:
        """Id of its process."""
        assert self._process is not None, "the broker was never started"
        return self._process.pid

    @property
    def log(self) -> str:
        """Warnings and errors of the broker, at most the last 64 KiB."""
        if self._folder is None:
            return ""
        try:
            with (self._folder.path / "log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_BYTES_MAX))
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def start(self) -> None:
        """Start it, or start it again after `kill`, with all records that it had acknowledged. Raises BrokerError."""
        if self.is_running:
            raise BrokerError("the broker runs already")
        if self._folder is None:
            self._folder = MemoryFolder()
        path = self._folder.path
        try:
            secured = self._security.settings(path, self._port)
        except MissingExtra as error:
            self.close()
            raise BrokerError(str(error)) from None
        wanted = {**secured, **self._settings}
        settings = [argument for name, value in wanted.items() for argument in ("--set", f"{name}={value}")]
        # -P: a module of the tests that is named like one of the broker's must not take its place.
        command = [sys.executable, "-P", "-m", "anabranch", "dev", "--controlled", "--folder", str(path)]
        with (path / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port), "--admin-port", str(self._admin_port), *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests
            )
        self._is_paused = self._has_faults = False
        try:
            said = self._read(START_TIMEOUT_S)
        except BrokerError:
            if self._port:
                self.kill()
            else:
                self.close()
            raise
        self._port = _port(said["address"])
        self._admin_port = _port(said["admin"])
        for user, password in self._security.users.items():
            self._order(set_password=password, user=user, salt=secrets.token_hex(SALT_BYTES))

    def close(self) -> None:
        """End it, and remove its data. A second call does nothing."""
        self.kill()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        self._port = self._admin_port = 0

    def kill(self) -> None:
        """End its process as a crash would (SIGKILL). `start` brings it back. No error if it does not run."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def pause(self) -> None:
        """Suspend its process (SIGSTOP): it answers nothing until `resume`."""
        self._check_running()
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._check_running()
        os.kill(self.pid, signal.SIGCONT)
        self._is_paused = False

    def slow_store(self, ms: float) -> None:
        """Let each call to the object store take this much longer; 0: no more. Uploads and reads of old data wait."""
        self._fault(slow_store_ms=ms)

    def fail_next(self, api: str, error: str | int, *, times: int = 1, applied: bool = False) -> None:
        """Answer the next requests of an API with an error, both by their names in Kafka's protocol.

            broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")

        Such a request changes nothing; with `applied` it is carried out, as when an answer is lost. For this and the
        next three: Produce requests with acks=0 have no answer, and do not count.
        """
        self._fault(fail=api, code=error, times=times, applied=applied)

    def drop_next(self, api: str, *, times: int = 1, applied: bool = False) -> None:
        """Close the connection at the next requests of an API; with `applied`, after they were carried out."""
        self._fault(drop=api, times=times, applied=applied)

    def delay_next(self, api: str, ms: float, *, times: int = 1) -> None:
        """Let the next requests of an API, and those behind them on their connections, wait before they are handled."""
        self._fault(delay=api, ms=ms, times=times)

    def throttle_next(self, api: str, ms: int, *, times: int = 1) -> None:
        """Throttle the clients that send the next requests of an API, as a quota would."""
        self._fault(throttle=api, ms=ms, times=times)

    def cut(self) -> None:
        """Cut clients off until `heal`: close all their connections, and new ones at their first request."""
        self._fault(cut=True)

    def _fault(self, **order: object) -> None:
        self._has_faults = True
        self._order(**order)

    def heal(self) -> None:
        """End all faults: go on after `pause`, start after `kill`, fail and delay nothing more."""
        if not self.is_running:
            self.start()
        if self._is_paused:
            self.resume()
        if self._has_faults:
            self._order(clear=True)
            self._has_faults = False

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None) -> None:
        """Create a topic. Raises BrokerError."""
        texts = {key: str(value) for key, value in (configs or {}).items()}
        self._order(create_topic=name, partitions=partitions, configs=texts)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises BrokerError."""
        self._order(delete_topic=name)

    def records(self, topic: str, *, partition: int | None = None, committed: bool = False) -> list[Record]:
        """Return all records of a topic, or of one partition, ordered by partition and offset. Raises BrokerError.

        They are those that there are when it is called. With `committed`, records of aborted and open transactions are
        left out, as for a consumer with `isolation.level=read_committed`. No client and no fault has a part in it.
        """
        bounds = self._order(bounds=topic, committed=committed)["bounds"]
        if partition is not None and not 0 <= partition < len(bounds):
            raise BrokerError(f"topic {topic!r} has {len(bounds)} partitions, and no partition {partition}")
        found: list[Record] = []
        for index in range(len(bounds)) if partition is None else [partition]:
            offset, end = bounds[index]
            while offset < end:
                answer = self._order(read=topic, partition=index, offset=offset, committed=committed)
                found += (_record(index, row) for row in answer["records"] if row[0] < end)
                offset = answer["next"]
        return found

    def wait_for_group(
        self, group: str, *, members: int = 1, caught_up: bool = False, timeout_s: float = ORDER_TIMEOUT_S
    ) -> None:
        """Wait until a group is stable with at least that many members, so that its partitions are assigned.

        With `caught_up`, wait also until it has committed the ends of all partitions with records that it is assigned
        or has committed before. Raises BrokerError, which says how the group was, after `timeout_s`.
        """
        until_s = time.perf_counter() + timeout_s
        while True:
            found = self._order(describe_group=group)["group"]
            if _is_settled(found, members) and (_is_caught_up(found) or not caught_up):
                return
            if time.perf_counter() > until_s:
                raise BrokerError(f"group {group!r} after {timeout_s:g} s: {_told(found)}")
            time.sleep(GROUP_POLL_S)

    def _check_running(self) -> None:
        if not self.is_running:
            raise BrokerError(f"the broker does not run{self._with_log()}")

    def _order(self, **order: object) -> Mapping[str, Any]:
        self._check_running()
        if self._is_paused:
            raise BrokerError("the broker is paused")
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BrokerError(f"the broker has ended{self._with_log()}") from None
        answer = self._read(ORDER_TIMEOUT_S)
        if "error" in answer:
            raise BrokerError(str(answer["error"]))
        return answer

    def _read(self, timeout_s: float) -> Mapping[str, Any]:
        """Return the next answer. Raises BrokerError."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(timeout_s * 1000):
                raise BrokerError(f"the broker did not answer within {timeout_s:g} s{self._with_log()}")
            part = os.read(pipe, PART_BYTES)
            if not part:
                if self._process.wait() == BAD_SETTING and self.log:
                    raise BrokerError(self.log.splitlines()[-1].removeprefix("Error: "))
                raise BrokerError(f"the broker has ended{self._with_log()}")
            line += part
        found: Mapping[str, Any] = json.loads(line)
        return found

    def _with_log(self) -> str:
        said = self.log.strip()
        return f":\n{said}" if said else ""


def _port(address: str) -> int:
    """Return the port of an address; 0: there is none."""
    return int(address.rpartition(":")[2] or 0)


def _record(partition: int, row: Sequence[Any]) -> Record:
    """Return the record of a row (`broker.operator.dev.reading.row`)."""
    offset, timestamp_ms, key, value, headers = row
    pairs = tuple((name, _bytes(text)) for name, text in headers)
    return Record(partition, offset, timestamp_ms, _bytes(key), _bytes(value), pairs)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _is_settled(group: Mapping[str, Any] | None, members: int) -> bool:
    return group is not None and group["state"] == "Stable" and group["members"] >= members


def _is_caught_up(group: Mapping[str, Any] | None) -> bool:
    """Return whether nothing is left to consume of the group's partitions, of which there must be some."""
    offsets = [] if group is None else group["offsets"]
    return bool(offsets) and all(end == (start if at is None else at) for _, _, at, start, end in offsets)


def _told(group: Mapping[str, Any] | None) -> str:
    if group is None:
        return "it does not exist"
    offsets = [f"{topic}-{index} at {at} of {end}" for topic, index, at, _, end in group["offsets"]]
    return f"{group['state']}, {group['members']} members, {', '.join(offsets) or 'no partitions'}"
