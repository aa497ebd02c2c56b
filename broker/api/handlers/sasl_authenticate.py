"""SaslAuthenticate out of place: at a listener without SASL, or from an authenticated client.

At listeners with SASL, `broker.api.handlers.authentication` answers it.
"""

from typing import Final

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

_MESSAGE: Final = "SaslAuthenticate request received after successful authentication"


def handle(_serving: Serving, _request: SaslAuthenticateRequest, _exchange: Exchange) -> SaslAuthenticateResponse:
    """Refuse it, as Apache Kafka does."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_MESSAGE)


API = declare(
    SaslAuthenticateRequest,
    handle,
    guard=open_to_all,
    metered=Metered.NOTHING,  # as in Apache Kafka
)
