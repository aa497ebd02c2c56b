"""Requests about the users of SCRAM (KIP-554), as commands and the admin API send them.

A password is salted before it is in a request, so the cluster receives and keeps nothing that it could be read from.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from anabranch.broker.kafka.sasl.scram import salt_of, salted_password
from anabranch.broker.node.settings.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

MECHANISM_TYPES: Final[Mapping[int, str]] = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""Mechanisms by their numbers in requests."""
_NUMBERS: Final = {mechanism: number for number, mechanism in MECHANISM_TYPES.items()}
Credentials: TypeAlias = Mapping[str, Mapping[str, int | None]]
"""Iterations by user and mechanism; None: the credential is damaged."""
SEED_BYTES: Final = 32
"""Unpredictable bytes that a salt is made of."""


class UserNameError(ValueError):
    """No user of SCRAM can have this name. The text is the one line to show."""


class SaltedPassword(NamedTuple):
    """A password that is salted for one mechanism."""

    mechanism: str
    salt: bytes
    salted: bytes
    iterations: int


def check_user_name(name: str) -> None:
    """Raise UserNameError for a name that Apache Kafka does not allow, either."""
    if not name or not name.isascii() or "\0" in name:
        raise UserNameError("the name of a SCRAM user must consist of ASCII characters, as in Apache Kafka")


def salt_password(mechanism: str, password: str, iterations: int, seed: bytes) -> SaltedPassword:
    """Return a password with a salt made of `SEED_BYTES` unpredictable bytes. Takes some ms."""
    salt = salt_of(seed)
    return SaltedPassword(mechanism, salt, salted_password(mechanism, password, salt, iterations), iterations)


def put_request(name: str, password: SaltedPassword) -> AlterUserScramCredentialsRequest:
    """Return the request that sets a credential. A request may change a user only once."""
    upsertion = ScramCredentialUpsertion(
        name=name,
        mechanism=_NUMBERS[password.mechanism],
        iterations=password.iterations,
        salt=password.salt,
        salted_password=password.salted,
    )
    return AlterUserScramCredentialsRequest(upsertions=[upsertion])


def remove_request(name: str, mechanism: str) -> AlterUserScramCredentialsRequest:
    """Return the request that removes a credential, which must exist."""
    return AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=name, mechanism=_NUMBERS[mechanism])]
    )
