"""Checks, before Java is started, that brokers answer and have the topics: one line instead of a stack trace.

It connects as the pipeline's Kafka client will, with its TLS and SASL, and sends one Metadata request, with a time
limit. Where only Java can read the properties (a key store in JKS, Kerberos), it only connects.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Final

from anabranch.client.connection import AddressError, Connection, connect_to_any, parse_address
from anabranch.client.errors import ClientError, UnsupportedProperty
from anabranch.client.settings import client_settings
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from anabranch.spark.pipeline.errors import PipelineError

TIMEOUT_S: Final = 5.0
CLIENT_ID: Final = b"anabranch-spark"


class BrokerError(PipelineError):
    """No broker answers or accepts the client, or a topic is missing. The text names topic and broker."""


def check_brokers(servers: str, topics: Sequence[str] | None, properties: Mapping[str, str]) -> list[str]:
    """Find a broker of `servers` that answers, and check that it has all `topics`. Raises BrokerError, PropertyError.

    `properties` are those of the Kafka client. Returns the topics; with None, all that the client may see.
    """
    try:
        settings = client_settings(properties)
    except UnsupportedProperty:
        _find_listener(servers)
        return list(topics or ())

    def connect(host: str, port: int) -> Connection:
        return Connection(host, port, settings, client_id=CLIENT_ID, timeout_s=TIMEOUT_S)

    wanted = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
    try:
        with connect_to_any(servers, connect) as connection:
            answer: MetadataResponse = connection.call(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
    except ClientError as error:
        raise BrokerError(str(error)) from None
    except AddressError as error:
        raise BrokerError(str(error)) from None
    if topics is not None:
        _check_answer(connection.where, answer)
    return sorted(topic.name for topic in answer.topics if topic.name is not None and not topic.is_internal)


def _check_answer(server: str, answer: MetadataResponse) -> None:
    unknown = [topic.name or "" for topic in answer.topics if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if unknown:
        raise BrokerError(f"{server} has no topic {', '.join(map(repr, unknown))}; see `anabranch topic list`")
    for topic in answer.topics:
        if topic.error_code:
            raise BrokerError(f"{server}, topic {topic.name!r}: {ErrorCode(topic.error_code).name}")


def _find_listener(servers: str) -> None:
    """Connect to one of the servers. Raises BrokerError."""
    failures = []
    for server in servers.split(","):
        try:
            socket.create_connection(parse_address(server.strip()), timeout=TIMEOUT_S).close()
        except AddressError as error:
            raise BrokerError(str(error)) from None
        except OSError as error:
            failures.append(f"cannot connect to {server.strip()}: {error.strerror or error}")
        else:
            return
    raise BrokerError("; ".join(failures))
