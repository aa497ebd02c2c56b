"""GetTelemetrySubscriptions (KIP-714): the metrics that a client has to push, the interval, and the codecs."""

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.client_attributes import client_attributes
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.telemetry.clients import ACCEPTED
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


def handle(
    serving: Serving, request: GetTelemetrySubscriptionsRequest, exchange: Exchange
) -> GetTelemetrySubscriptionsResponse:
    """Answer at once."""
    try:
        instance_id, subscription = serving.telemetry.subscribe(
            request.client_instance_id, client_attributes(request.client_instance_id, exchange)
        )
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=subscription.subscription_id,
        accepted_compression_types=ACCEPTED,
        push_interval_ms=subscription.interval_ms,
        telemetry_max_bytes=serving.settings.telemetry.push_bytes_max,
        delta_temporality=True,
        requested_metrics=subscription.metrics,
    )


API = declare(GetTelemetrySubscriptionsRequest, handle, guard=open_to_all, of_telemetry=True)
