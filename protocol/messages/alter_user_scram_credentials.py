"""AlterUserScramCredentials: set and remove SCRAM credentials (KIP-554).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 51


@message
class ScramCredentialDeletion:
    name: str = wire.string("0+")
    mechanism: int = wire.int8("0+")


@message
class ScramCredentialUpsertion:
    name: str = wire.string("0+")
    mechanism: int = wire.int8("0+")
    iterations: int = wire.int32("0+")
    salt: bytes = wire.bytes_("0+")
    salted_password: bytes = wire.bytes_("0+")


@message(versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    deletions: Sequence[ScramCredentialDeletion] = wire.array(ScramCredentialDeletion, "0+")
    upsertions: Sequence[ScramCredentialUpsertion] = wire.array(ScramCredentialUpsertion, "0+")


@message
class AlterUserScramCredentialsResult:
    user: str = wire.string("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")


@message(versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[AlterUserScramCredentialsResult] = wire.array(AlterUserScramCredentialsResult, "0+")
