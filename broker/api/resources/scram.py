"""Changes to the SCRAM credentials of several users in one request, by the rules of Apache Kafka's controller."""

from collections.abc import Mapping, Sequence

from anabranch.broker.kafka.sasl.credentials import ScramCredentials
from anabranch.broker.kafka.sasl.scram import ITERATIONS_MAX, ITERATIONS_MIN, make_credential
from anabranch.broker.kafka.sasl.user_requests import MECHANISM_TYPES
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from anabranch.s3stream.errors import StorageError

Change = ScramCredentialDeletion | ScramCredentialUpsertion


async def alter_credentials(
    credentials: ScramCredentials, request: AlterUserScramCredentialsRequest
) -> Mapping[str, KafkaError | None]:
    """Change users that are named once, and return the errors of the others by name."""
    changes: dict[str, Change] = {}
    outcomes: dict[str, KafkaError | None] = {}
    requested: Sequence[Change] = [*request.deletions, *request.upsertions]
    for change in requested:
        name = change.name
        if outcomes.get(name) is not None:
            continue
        outcomes[name] = _problem(credentials, change, is_second=changes.pop(name, None) is not None)
        if outcomes[name] is None:
            changes[name] = change
    for name, change in changes.items():
        try:
            await _apply(credentials, change)
        except StorageError as error:
            outcomes[name] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    return outcomes


def _problem(credentials: ScramCredentials, change: Change, *, is_second: bool) -> KafkaError | None:
    """Return why a change is refused; None if it is not."""
    mechanism = MECHANISM_TYPES.get(change.mechanism)
    if is_second:
        return KafkaError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    if not change.name:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is None:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialDeletion):
        if not credentials.has(mechanism, change.name):
            return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    elif change.iterations < ITERATIONS_MIN:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif change.iterations > ITERATIONS_MAX:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return None


async def _apply(credentials: ScramCredentials, change: Change) -> None:
    """Make a change that was checked. Raises CatalogError."""
    mechanism = MECHANISM_TYPES[change.mechanism]
    if isinstance(change, ScramCredentialDeletion):
        await credentials.remove(change.name, mechanism)
    else:
        made = make_credential(mechanism, change.salted_password, change.salt, change.iterations)
        await credentials.put(change.name, mechanism, made)
