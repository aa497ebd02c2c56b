"""PushTelemetry (KIP-714): accept the metrics of a client for the node's metrics page."""

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.client_attributes import client_attributes
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.telemetry.clients import Push
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


def handle(serving: Serving, request: PushTelemetryRequest, exchange: Exchange) -> PushTelemetryResponse:
    """Answer at once."""
    push = Push(
        instance_id=bytes(request.client_instance_id),
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
        compression=request.compression_type,
        metrics=request.metrics,
    )
    try:
        serving.telemetry.push(push, client_attributes(push.instance_id, exchange))
    except KafkaError as error:
        return PushTelemetryResponse(error_code=error.code)
    return PushTelemetryResponse()


API = declare(PushTelemetryRequest, handle, guard=open_to_all, of_telemetry=True)
