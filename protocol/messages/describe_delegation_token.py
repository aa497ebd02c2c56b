"""DescribeDelegationToken: the tokens of owners (KIP-48, KIP-373).

Versions:
    v1  oldest version served
    v2  flexible
    v3  response adds tokens.token_requester_principal_type, tokens.token_requester_principal_name
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 41


@message
class DescribeDelegationTokenOwner:
    principal_type: str = wire.string("0+")
    principal_name: str = wire.string("0+")


@message(versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    owners: Sequence[DescribeDelegationTokenOwner] | None = wire.array(
        DescribeDelegationTokenOwner, "0+", nullable="0+"
    )


@message
class DescribedDelegationTokenRenewer:
    principal_type: str = wire.string("0+")
    principal_name: str = wire.string("0+")


@message
class DescribedDelegationToken:
    principal_type: str = wire.string("0+")
    principal_name: str = wire.string("0+")
    token_requester_principal_type: str = wire.string("3+")
    token_requester_principal_name: str = wire.string("3+")
    issue_timestamp: int = wire.int64("0+")
    expiry_timestamp: int = wire.int64("0+")
    max_timestamp: int = wire.int64("0+")
    token_id: str = wire.string("0+")
    hmac: bytes = wire.bytes_("0+")
    renewers: Sequence[DescribedDelegationTokenRenewer] = wire.array(DescribedDelegationTokenRenewer, "0+")


@message(versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    error_code: int = wire.int16("0+")
    tokens: Sequence[DescribedDelegationToken] = wire.array(DescribedDelegationToken, "0+")
    throttle_time_ms: int = wire.int32("0+")
