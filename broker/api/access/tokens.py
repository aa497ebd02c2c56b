"""Guards of the APIs for delegation tokens (KIP-48). Renewals are checked by their handlers: owner and renewers may."""

from dataclasses import replace

from anabranch.broker.api.access.guard import Passed, Refused, Verdict
from anabranch.broker.api.handlers.caller import Caller
from anabranch.broker.api.handlers.create_delegation_token import refusal
from anabranch.broker.api.handlers.token_requests import owner_of
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.kafka.sasl.delegation_tokens import concerns
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from anabranch.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)


def create_delegation_token(caller: Caller, request: CreateDelegationTokenRequest) -> Verdict:
    """Check CREATE_TOKENS on another user that the client requests a token for."""
    owner = owner_of(request.owner_principal_type, request.owner_principal_name, caller.principal)
    if (
        owner == caller.principal
        or not caller.may_ask_for_tokens
        or caller.may(AclOperation.CREATE_TOKENS, AclResourceType.USER, owner)
    ):
        return Passed(request)
    return Refused(refusal(owner, caller.principal, caller.version, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED))


def describe_delegation_token(caller: Caller, request: DescribeDelegationTokenRequest) -> Verdict:
    """Name the tokens of the client, and those that it may describe: by DESCRIBE on them, or on tokens of the owner."""

    def amend(response: DescribeDelegationTokenResponse) -> DescribeDelegationTokenResponse:
        return replace(response, tokens=[each for each in response.tokens if _may_see(caller, each.token_id)])

    return Passed(request, amend)


def _may_see(caller: Caller, token_id: str) -> bool:
    tokens = caller.node.delegation_tokens
    token = None if tokens is None else tokens.get(token_id)
    if token is None:
        return False
    return (
        concerns(token, caller.principal)
        or caller.may(AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token_id, audited=False)
        or caller.may(AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, token.owner, audited=False)
    )
