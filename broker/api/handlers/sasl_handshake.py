"""SaslHandshake out of place: at a listener without SASL, or from an authenticated client.

At listeners with SASL, `broker.api.handlers.authentication` answers it.
"""

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(_serving: Serving, _request: SaslHandshakeRequest, _exchange: Exchange) -> SaslHandshakeResponse:
    """Refuse it, as Apache Kafka does."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


API = declare(
    SaslHandshakeRequest,
    handle,
    guard=open_to_all,
    metered=Metered.NOTHING,  # as in Apache Kafka
)
