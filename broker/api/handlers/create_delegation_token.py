"""CreateDelegationToken: create a token for the client, or for another user (KIP-48, KIP-373)."""

from collections.abc import Iterable

from anabranch.broker.api.access.caller import Caller, may_ask_for_tokens
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.token_requests import (
    NO_TIME,
    USER_TYPE,
    code_of,
    current_tokens,
    owner_of,
    requester_fields,
    split,
)
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from anabranch.s3stream.errors import StorageError


async def handle(
    serving: Serving, request: CreateDelegationTokenRequest, exchange: Exchange
) -> CreateDelegationTokenResponse:
    """Answer when the token is in the catalog, and clients may use it here."""
    requester, version = exchange.connection.principal, exchange.api_version
    owner = owner_of(request.owner_principal_type, request.owner_principal_name, requester)
    if not may_ask_for_tokens(exchange.connection):
        return refusal(owner, requester, version, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    kinds = {each.principal_type for each in request.renewers}
    if kinds - {USER_TYPE} or split(owner)[0] != USER_TYPE:
        return refusal(owner, requester, version, ErrorCode.INVALID_PRINCIPAL_TYPE)
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in request.renewers]
    try:
        tokens = await current_tokens(serving, exchange)
        token = await tokens.create(owner, requester, renewers, request.max_lifetime_ms)
    except (KafkaError, StorageError) as error:
        return refusal(owner, requester, version, code_of(error), time_ms=0)
    principal_type, name = split(owner)
    return CreateDelegationTokenResponse(
        principal_type=principal_type,
        principal_name=name,
        **requester_fields(requester, version),
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=tokens.hmac_of(token.token_id),
    )


def refusal(
    owner: str, requester: str, version: int, code: ErrorCode, *, time_ms: int = NO_TIME
) -> CreateDelegationTokenResponse:
    """Return the answer to a refused request. `time_ms` is used for all times, as in Apache Kafka."""
    principal_type, name = split(owner)
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=principal_type,
        principal_name=name,
        **requester_fields(requester, version),
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
    )


def guard(caller: Caller, request: CreateDelegationTokenRequest) -> Verdict:
    """Check CREATE_TOKENS on another user that the client requests a token for."""
    owner = owner_of(request.owner_principal_type, request.owner_principal_name, caller.principal)
    if (
        owner == caller.principal
        or not caller.may_ask_for_tokens
        or caller.may(AclOperation.CREATE_TOKENS, AclResourceType.USER, owner)
    ):
        return Passed(request)
    return Refused(refusal(owner, caller.principal, caller.version, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED))


def _changes(_request: CreateDelegationTokenRequest, response: CreateDelegationTokenResponse) -> Iterable[Change]:
    named = f"{response.token_id} of {response.principal_type}:{response.principal_name}".strip()
    return (Change("DELEGATION_TOKEN", named, response.error_code),)


API = declare(CreateDelegationTokenRequest, handle, guard=guard, changes=_changes)
