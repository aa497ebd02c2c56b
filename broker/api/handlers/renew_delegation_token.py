"""RenewDelegationToken: postpone a token's expiry (KIP-48)."""

from anabranch.broker.api.access.caller import may_ask_for_tokens
from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.token_requests import NO_TIME, changed_token, code_of, current_tokens, token_id
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from anabranch.s3stream.errors import StorageError


async def handle(
    serving: Serving, request: RenewDelegationTokenRequest, exchange: Exchange
) -> RenewDelegationTokenResponse:
    """Answer when the change is in the catalog. Owner and renewers may ask for it."""
    try:
        tokens = await current_tokens(serving, exchange)
        expires_ms = await tokens.renew(exchange.connection.principal, request.hmac, request.renew_period_ms)
    except (KafkaError, StorageError) as error:
        # as in Apache Kafka
        time_ms = 0 if may_ask_for_tokens(exchange.connection) else NO_TIME
        return RenewDelegationTokenResponse(error_code=code_of(error), expiry_timestamp_ms=time_ms)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)


API = declare(
    RenewDelegationTokenRequest,
    handle,
    guard=open_to_all,  # the handler checks owner and renewers
    changes=changed_token,
    subject=token_id,
)
