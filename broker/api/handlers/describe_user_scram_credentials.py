"""DescribeUserScramCredentials: which mechanisms users have, and with how many iterations (KIP-554)."""

from collections import Counter

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.sasl.scram import CredentialError
from anabranch.broker.kafka.sasl.user_requests import MECHANISM_TYPES
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    serving: Serving, request: DescribeUserScramCredentialsRequest, _exchange: Exchange
) -> DescribeUserScramCredentialsResponse:
    """Describe the users that are asked for, or all."""
    wanted = Counter(user.name for user in request.users) if request.users else Counter(serving.scram.users)
    return DescribeUserScramCredentialsResponse(
        results=[_describe(serving, user, count) for user, count in wanted.items()]
    )


def _describe(serving: Serving, user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return DescribeUserScramCredentialsResult(
            user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=message
        )
    try:
        found = serving.scram.of_user(user)
    except CredentialError as error:
        return DescribeUserScramCredentialsResult(
            user=user, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=str(error)
        )
    if not found:
        message = f"Attempt to describe a user credential that does not exist: {user}"
        return DescribeUserScramCredentialsResult(
            user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=message
        )
    infos = [
        CredentialInfo(mechanism=number, iterations=found[mechanism].iterations)
        for number, mechanism in MECHANISM_TYPES.items()
        if mechanism in found
    ]
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)


def refusal(request: DescribeUserScramCredentialsRequest, _version: int) -> DescribeUserScramCredentialsResponse:
    """Return the answer to a client that is not authorized: a result for each user, without a name."""
    results = [DescribeUserScramCredentialsResult(error_code=CLUSTER_DENIED, error_message=None)] * len(
        request.users or ()
    )
    return DescribeUserScramCredentialsResponse(error_code=CLUSTER_DENIED, error_message=None, results=results)


API = declare(DescribeUserScramCredentialsRequest, handle, guard=needs_cluster(AclOperation.DESCRIBE, refusal))
