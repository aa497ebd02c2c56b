"""SaslAuthenticate out of place: at a listener without SASL, or from an authenticated client.

At listeners with SASL, `broker.api.handlers.authentication` answers it.
"""

from typing import Final

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

_MESSAGE: Final = "SaslAuthenticate request received after successful authentication"


def handle(_node: Node, _request: SaslAuthenticateRequest, _exchange: Exchange) -> SaslAuthenticateResponse:
    """Refuse it, as Apache Kafka does."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_MESSAGE)
