"""Checks and errors that the handlers of delegation tokens (KIP-48) have in common."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from anabranch.broker.api.access.caller import may_ask_for_tokens
from anabranch.broker.api.access.changes import Change
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError

USER_TYPE: Final = "User"
NO_TIME: Final = -1
REQUESTER_SINCE: Final = 3


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


async def current_tokens(serving: Serving, exchange: Exchange) -> DelegationTokens:
    """Return the tokens, with the changes of all nodes.

    Raises StorageError, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED.
    """
    if not may_ask_for_tokens(exchange.connection):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if serving.delegation_tokens is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    await serving.membership.catch_up()
    if exchange.connection.has_scram_credential and not serving.scram.of_user(split(exchange.connection.principal)[1]):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)  # the user was removed meanwhile
    return serving.delegation_tokens


def code_of(error: KafkaError | StorageError) -> ErrorCode:
    """Return the code of an error, for answers that have no text."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR


def token_id(serving: Serving, request: Any) -> str:
    """Return the id of the token that a request names by its HMAC, which is a secret; empty if there is none."""
    return "" if serving.delegation_tokens is None else serving.delegation_tokens.id_of(request.hmac)


def changed_token(_request: Any, response: Any) -> Iterable[Change]:
    """Return the token that was to be changed, which neither request nor response names."""
    return (Change("DELEGATION_TOKEN", "", response.error_code),)
