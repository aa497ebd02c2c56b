"""A small blocking Kafka client for the command line, one request at a time."""

import socket
from base64 import urlsafe_b64encode
from struct import Struct
from types import TracebackType
from typing import Any, Final, Self

import click

from protocol.codec import decode_exact
from protocol.errors import ErrorCode, ProtocolError
from protocol.header import request_frame
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.registry import APIS

CLIENT_ID: Final = b"anabranch-cli"
TIMEOUT_S: Final = 30.0
GREETING_TIMEOUT_S: Final = 5.0
"""Limit for a node to accept a connection and to answer ApiVersions."""
RESPONSE_BYTES_MAX: Final = 100 << 20
_API_OF: Final = {api.request: api for api in APIS.values()}
_INT32: Final = Struct(">i")
_TLS_RECORDS: Final = frozenset({21, 22})
"""Alert and handshake."""
_TLS_MAJOR: Final = 3


class _ExchangeError(Exception):
    """A request has failed; the text is the reason."""


class CommandConnection:
    """A connection to one node. Failures raise a ClickException that names the node."""

    def __init__(self, host: str, port: int) -> None:
        self._where = f"{host}:{port}"
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = socket.create_connection((host, port), timeout=GREETING_TIMEOUT_S)
        except OSError as error:
            raise click.ClickException(
                f"cannot connect to {self._where}: {error.strerror or error}; is the node running?"
            ) from None
        # A request may go out in several parts: the last must not wait for the node's acknowledgement of the first.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            answer: ApiVersionsResponse = self._exchange(ApiVersionsRequest(), 0)
        except TimeoutError:
            self.close()
            raise click.ClickException(
                f"{self._where} is not a Kafka broker: no answer to the first request within {GREETING_TIMEOUT_S:g} s"
            ) from None
        except _ExchangeError as error:
            self.close()
            raise click.ClickException(f"{self._where} is not a Kafka broker: {error}") from None
        self._socket.settimeout(TIMEOUT_S)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def version(self, request_type: type[object]) -> int:
        """Return the newest version of an API that both sides support. Raises ClickException."""
        api = _API_OF[request_type]
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = min(newest, api.max_version)
        if version < max(oldest, api.min_version):
            raise click.ClickException(f"{self._where} does not serve {api.name} {api.min_version}-{api.max_version}")
        return version

    def call(self, request: object) -> Any:
        """Send a request in that version; return the response. Raises ClickException."""
        version, name = self.version(type(request)), _API_OF[type(request)].name
        try:
            return self._exchange(request, version)
        except TimeoutError:
            raise click.ClickException(f"{self._where}, {name}: no answer within {TIMEOUT_S:g} s") from None
        except _ExchangeError as error:
            raise click.ClickException(f"{self._where}, {name}: {error}") from None

    def _exchange(self, request: object, version: int) -> Any:
        """Send a request, and wait for its answer. Raises TimeoutError, _ExchangeError."""
        api = _API_OF[type(request)]
        self._correlation_id += 1
        try:
            for part in request_frame(api.key, version, self._correlation_id, CLIENT_ID, request):
                self._socket.sendall(part)
            answer = self._receive()
            (found,) = _INT32.unpack_from(answer, 0)
            if found != self._correlation_id:
                raise _ExchangeError(f"expected an answer to request {self._correlation_id}, found one to {found}")
            tagged = api.is_flexible(version) and api.request is not ApiVersionsRequest
            return decode_exact(api.response, answer, version, _INT32.size + tagged)
        except TimeoutError:
            raise
        except OSError as error:
            raise _ExchangeError(error.strerror or str(error)) from None
        except ProtocolError as error:
            raise _ExchangeError(f"its answer to {api.name} cannot be read: {error}") from None

    def _receive(self) -> memoryview:
        head = bytes(self._receive_exactly(_INT32.size))
        (size,) = _INT32.unpack(head)
        if not _INT32.size <= size <= RESPONSE_BYTES_MAX:
            raise _ExchangeError(_describe_server(head))
        return self._receive_exactly(size)

    def _receive_exactly(self, count: int) -> memoryview:
        data = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            received = self._socket.recv_into(data[filled:])
            if not received:
                which = (
                    "the first request; a broker does that where it expects TLS" if not self._versions else "a request"
                )
                raise _ExchangeError(f"it closed the connection at {which}")
            filled += received
        return data


def _describe_server(head: bytes) -> str:
    """Describe a server that does not use Kafka's protocol, by the first bytes of its answer."""
    if head == b"HTTP":
        return "it answers in HTTP"
    if head[0] in _TLS_RECORDS and head[1] == _TLS_MAJOR:
        return "it uses TLS, which this command does not support"
    return f"its answer begins with {head!r}"


def connect(bootstrap_servers: str) -> CommandConnection:
    """Connect to the first of `HOST:PORT,...` that answers. Raises ClickException."""
    failures = []
    for text in bootstrap_servers.split(","):
        host, separator, port = text.strip().rpartition(":")
        if not separator or not host or not port.isdigit() or int(port) > 65535:
            raise click.BadParameter(
                f"expected HOST:PORT[,HOST:PORT...], found {text.strip()!r}", param_hint="--bootstrap-server"
            )
        try:
            return CommandConnection(host.strip("[]"), int(port))
        except click.ClickException as error:
            failures.append(error.message)
    raise click.ClickException("; ".join(failures))


def describe_topics(connection: CommandConnection, names: "tuple[str, ...] | None" = None) -> MetadataResponse:
    """Return the metadata of some topics, or of all, without creating any."""
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    answer: MetadataResponse = connection.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    return answer


def id_text(topic_id: bytes) -> str:
    """Format a topic id as Kafka's tools do; `-` if there is none."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else "-"


def error_text(code: int, message: str | None = None) -> str:
    """Format an error code as its name, with the node's message if there is one."""
    name = ErrorCode(code).name if code in {int(known) for known in ErrorCode} else f"error {code}"
    return f"{name}: {message}" if message else name
