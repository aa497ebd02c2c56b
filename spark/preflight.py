"""Checks, before Java is started, that brokers answer and have the topics: one line instead of a stack trace.

It sends one Metadata request over a plain connection, with a time limit. If the pipeline's options require TLS or SASL,
it only checks that a connection is accepted; the rest is left to Spark's own client.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from protocol.codec import decode_exact, encode_frame
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.metadata import KEY, MetadataRequest, MetadataRequestTopic, MetadataResponse

TIMEOUT_S: Final = 5.0
VERSION: Final = 8
RESPONSE_BYTES_MAX: Final = 64 << 20
CLIENT_ID: Final = b"anabranch-spark"
_HEADER: Final = Struct(">hhih")
_INT32: Final = Struct(">i")


class BrokerError(Exception):
    """No broker answers, or a topic is missing. The text names topic and broker."""


def check_brokers(servers: str, topics: Sequence[str], options: Mapping[str, str]) -> None:
    """Find a broker of `servers` that answers, and check that it has all `topics`. Raises BrokerError."""
    plain = options.get("kafka.security.protocol", "PLAINTEXT").upper() == "PLAINTEXT"
    failures = []
    for server in (part.strip() for part in servers.split(",")):
        try:
            if plain:
                answer = _ask(server, topics)
            else:
                _connect(server).close()
                return
        except (OSError, ProtocolError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            failures.append(f"{server}: {reason}")
            continue
        _check_answer(server, answer)
        return
    raise BrokerError(f"no broker answers: {'; '.join(failures)}")


def _check_answer(server: str, answer: MetadataResponse) -> None:
    unknown = [topic.name or "" for topic in answer.topics if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if unknown:
        raise BrokerError(f"{server} has no topic {', '.join(map(repr, unknown))}; see `anabranch topic list`")
    for topic in answer.topics:
        if topic.error_code:
            raise BrokerError(f"{server}, topic {topic.name!r}: {ErrorCode(topic.error_code).name}")


def _connect(server: str) -> socket.socket:
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise BrokerError(f"expected HOST:PORT[,HOST:PORT...], found {server!r}")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S)


def _ask(server: str, topics: Sequence[str]) -> MetadataResponse:
    wanted = [MetadataRequestTopic(name=topic) for topic in topics]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    head = _HEADER.pack(KEY, VERSION, 1, len(CLIENT_ID)) + CLIENT_ID
    # Limits the whole exchange, so that a server that sends single bytes cannot block it.
    until = time.perf_counter() + TIMEOUT_S
    with _connect(server) as connection:
        for part in encode_frame(request, VERSION, head):
            connection.sendall(part)
        (size,) = _INT32.unpack(_receive(connection, _INT32.size, until))
        if not _INT32.size <= size <= RESPONSE_BYTES_MAX:
            raise ProtocolError(f"not a Kafka broker: a response of {size} bytes")
        answer = _receive(connection, size, until)
    response: MetadataResponse = decode_exact(MetadataResponse, answer, VERSION, _INT32.size)
    return response


def _receive(connection: socket.socket, count: int, until: float) -> memoryview:
    data = memoryview(bytearray(count))
    filled = 0
    while filled < count:
        left = until - time.perf_counter()
        if left <= 0:
            raise TimeoutError(f"no answer within {TIMEOUT_S:.0f} s")
        connection.settimeout(left)
        received = connection.recv_into(data[filled:])
        if not received:
            raise ProtocolError("closed the connection")
        filled += received
    return data
