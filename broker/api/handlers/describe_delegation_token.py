"""DescribeDelegationToken: the tokens of owners, with their HMACs (KIP-48, KIP-373)."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.token_requests import code_of, current_tokens, requester_fields, split
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens, concerns
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from anabranch.s3stream.catalog.values import TokenRow
from anabranch.s3stream.errors import StorageError


async def handle(
    serving: Serving, request: DescribeDelegationTokenRequest, exchange: Exchange
) -> DescribeDelegationTokenResponse:
    """Answer with the tokens that concern one of the principals asked for, or with all."""
    try:
        tokens = await current_tokens(serving, exchange)
    except (KafkaError, StorageError) as error:
        return DescribeDelegationTokenResponse(error_code=code_of(error))
    found = tokens.tokens
    if request.owners is not None:
        asked = [f"{each.principal_type}:{each.principal_name}" for each in request.owners]
        found = [token for token in found if any(concerns(token, principal) for principal in asked)]
    return DescribeDelegationTokenResponse(tokens=[_described(tokens, token, exchange.api_version) for token in found])


def _described(tokens: DelegationTokens, token: TokenRow, version: int) -> DescribedDelegationToken:
    principal_type, name = split(token.owner)
    return DescribedDelegationToken(
        principal_type=principal_type,
        principal_name=name,
        **requester_fields(token.requester, version),
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=tokens.hmac_of(token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=renewer_type, principal_name=renewer_name)
            for renewer_type, renewer_name in map(split, token.renewers)
        ],
    )


def guard(caller: Caller, request: DescribeDelegationTokenRequest) -> Verdict:
    """Name the tokens of the client, and those that it may describe: by DESCRIBE on them, or on tokens of the owner."""

    def amend(response: DescribeDelegationTokenResponse) -> DescribeDelegationTokenResponse:
        return replace(response, tokens=[each for each in response.tokens if _may_see(caller, each.token_id)])

    return Passed(request, amend)


def _may_see(caller: Caller, token_id: str) -> bool:
    tokens = caller.serving.delegation_tokens
    token = None if tokens is None else tokens.get(token_id)
    if token is None:
        return False
    return (
        concerns(token, caller.principal)
        or caller.may(AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token_id, audited=False)
        or caller.may(AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, token.owner, audited=False)
    )


API = declare(DescribeDelegationTokenRequest, handle, guard=guard)
