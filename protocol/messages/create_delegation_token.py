"""CreateDelegationToken: create a token to authenticate with (KIP-48, KIP-373).

Versions:
    v1  oldest version served
    v2  flexible
    v3  request adds owner_principal_type, owner_principal_name. response adds token_requester_principal_type,
        token_requester_principal_name
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 38


@message
class CreatableRenewers:
    principal_type: str = wire.string("0+")
    principal_name: str = wire.string("0+")


@message(versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    owner_principal_type: str | None = wire.string("3+", nullable="3+")
    owner_principal_name: str | None = wire.string("3+", nullable="3+")
    renewers: Sequence[CreatableRenewers] = wire.array(CreatableRenewers, "0+")
    max_lifetime_ms: int = wire.int64("0+")


@message(versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    error_code: int = wire.int16("0+")
    principal_type: str = wire.string("0+")
    principal_name: str = wire.string("0+")
    token_requester_principal_type: str = wire.string("3+")
    token_requester_principal_name: str = wire.string("3+")
    issue_timestamp_ms: int = wire.int64("0+")
    expiry_timestamp_ms: int = wire.int64("0+")
    max_timestamp_ms: int = wire.int64("0+")
    token_id: str = wire.string("0+")
    hmac: bytes = wire.bytes_("0+")
    throttle_time_ms: int = wire.int32("0+")
