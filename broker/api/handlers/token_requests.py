"""Checks and errors that the handlers of delegation tokens (KIP-48) have in common."""

from collections.abc import Mapping
from typing import Any, Final

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.node.net.exchange import ClientConnection, Exchange
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError

USER_TYPE: Final = "User"
NO_TIME: Final = -1
REQUESTER_SINCE: Final = 3


def may_ask(connection: ClientConnection) -> bool:
    """Return whether a client is authenticated, and not by a delegation token."""
    return connection.principal != ANONYMOUS and not connection.has_delegation_token


def split(principal: str) -> tuple[str, str]:
    """Return type and name of a principal in Kafka's notation."""
    kind, _, name = principal.partition(":")
    return kind, name


def requester_fields(requester: str, version: int) -> Mapping[str, Any]:
    """Return the fields about the requester of a token. Versions before 3 of the answers have none."""
    if version < REQUESTER_SINCE:
        return {}
    principal_type, name = split(requester)
    return {"token_requester_principal_type": principal_type, "token_requester_principal_name": name}


def owner_of(principal_type: str | None, name: str | None, requester: str) -> str:
    """Return the owner that a request to create a token names: the requester if it names none."""
    return f"{principal_type}:{name}" if name else requester


async def current_tokens(node: Node, exchange: Exchange) -> DelegationTokens:
    """Return the tokens, with the changes of all nodes.

    Raises StorageError, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED.
    """
    if not may_ask(exchange.connection):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if node.delegation_tokens is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    await node.membership.catch_up()
    if exchange.connection.has_scram_credential and not node.scram.of_user(split(exchange.connection.principal)[1]):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)  # the user was removed meanwhile
    return node.delegation_tokens


def code_of(error: KafkaError | StorageError) -> ErrorCode:
    """Return the code of an error, for answers that have no text."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
