"""SaslHandshake where nobody authenticates: at a listener without SASL, or when the client is authenticated.

At listeners with SASL, `broker.handlers.authentication` answers it.
"""

from anabranch.broker.net.exchange import Exchange
from anabranch.broker.node import Node
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(_node: Node, _request: SaslHandshakeRequest, _exchange: Exchange) -> SaslHandshakeResponse:
    """Refuse it, as Apache Kafka does."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
