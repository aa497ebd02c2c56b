"""AlterUserScramCredentials: set and remove the SCRAM credentials of users (KIP-554)."""

from collections.abc import Iterable

from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.resources.scram import alter_credentials
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)


async def handle(
    serving: Serving, request: AlterUserScramCredentialsRequest, _exchange: Exchange
) -> AlterUserScramCredentialsResponse:
    """Change each user that can be changed. The delegation tokens of one that is removed are worth nothing then."""
    outcomes = await alter_credentials(serving.scram, request)
    if request.deletions and serving.delegation_tokens is not None:
        await serving.membership.catch_up()
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)
            if error is not None
            else AlterUserScramCredentialsResult(user=user, error_message=None)
            for user, error in outcomes.items()
        ]
    )


def refusal(request: AlterUserScramCredentialsRequest, _version: int) -> AlterUserScramCredentialsResponse:
    """Return the answer to a client that is not authorized."""
    users = dict.fromkeys(each.name for changes in (request.deletions, request.upsertions) for each in changes)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)
            for user in users
        ]
    )


def _changes(
    _request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Iterable[Change]:
    return (Change("USER", each.user, each.error_code) for each in response.results)


API = declare(
    AlterUserScramCredentialsRequest,
    handle,
    guard=needs_cluster(AclOperation.ALTER, refusal),
    changes=_changes,
)
