"""DescribeUserScramCredentials: the SCRAM mechanisms of users (KIP-554).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 50


@message
class UserName:
    name: str = wire.string("0+")


@message(versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    users: Sequence[UserName] | None = wire.array(UserName, "0+", nullable="0+")


@message
class CredentialInfo:
    mechanism: int = wire.int8("0+")
    iterations: int = wire.int32("0+")


@message
class DescribeUserScramCredentialsResult:
    user: str = wire.string("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    credential_infos: Sequence[CredentialInfo] = wire.array(CredentialInfo, "0+")


@message(versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    results: Sequence[DescribeUserScramCredentialsResult] = wire.array(DescribeUserScramCredentialsResult, "0+")
