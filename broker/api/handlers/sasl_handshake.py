"""SaslHandshake out of place: at a listener without SASL, or from an authenticated client.

At listeners with SASL, `broker.api.handlers.authentication` answers it.
"""

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(_node: Node, _request: SaslHandshakeRequest, _exchange: Exchange) -> SaslHandshakeResponse:
    """Refuse it, as Apache Kafka does."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
