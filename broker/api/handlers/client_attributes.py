"""Attributes of a client that a subscription to metrics can match (KIP-714)."""

from collections.abc import Mapping

from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.ids import uuid_text


def client_attributes(instance_id: bytes, exchange: Exchange) -> Mapping[str, str]:
    """The attributes by Kafka's names; the instance id in base64, as Kafka writes it."""
    connection = exchange.connection
    return {
        "client_instance_id": uuid_text(instance_id),
        "client_id": exchange.client_id or "",
        "client_software_name": connection.software_name,
        "client_software_version": connection.software_version,
        "client_source_address": connection.host,
        "client_source_port": str(connection.port),
    }
