"""AlterUserScramCredentials: set and remove the SCRAM credentials of users (KIP-554)."""

from anabranch.broker.api.resources.scram import alter_credentials
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)


async def handle(
    node: Node, request: AlterUserScramCredentialsRequest, _exchange: Exchange
) -> AlterUserScramCredentialsResponse:
    """Change each user that can be changed. The delegation tokens of one that is removed are worth nothing then."""
    outcomes = await alter_credentials(node.scram, request)
    if request.deletions and node.delegation_tokens is not None:
        await node.membership.catch_up()
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)
            if error is not None
            else AlterUserScramCredentialsResult(user=user, error_message=None)
            for user, error in outcomes.items()
        ]
    )
