"""GetTelemetrySubscriptions: tell a client which metrics to push, how often, and packed how (KIP-714)."""

import base64
from collections.abc import Mapping

from broker.net.exchange import Exchange
from broker.node import Node
from broker.telemetry.clients import ACCEPTED
from protocol.errors import KafkaError
from protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

__all__ = ["client_attributes", "handle"]


def client_attributes(instance_id: bytes, context: Exchange) -> Mapping[str, str]:
    """What subscriptions can match of a client, by Kafka's names; an id as Kafka writes it."""
    connection = context.connection
    return {
        "client_instance_id": base64.urlsafe_b64encode(instance_id).rstrip(b"=").decode(),
        "client_id": context.client_id or "",
        "client_software_name": connection.software_name,
        "client_software_version": connection.software_version,
        "client_source_address": connection.host,
        "client_source_port": str(connection.port),
    }


def handle(
    node: Node, request: GetTelemetrySubscriptionsRequest, context: Exchange
) -> GetTelemetrySubscriptionsResponse:
    """Answer at once."""
    try:
        instance_id, wanted = node.telemetry.ask(
            request.client_instance_id, client_attributes(request.client_instance_id, context)
        )
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=wanted.subscription_id,
        accepted_compression_types=ACCEPTED,
        push_interval_ms=wanted.interval_ms,
        telemetry_max_bytes=node.settings.telemetry.push_bytes_max,
        delta_temporality=True,
        requested_metrics=wanted.metrics,
    )
