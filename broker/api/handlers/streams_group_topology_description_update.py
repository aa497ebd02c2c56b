"""StreamsGroupTopologyDescriptionUpdate (KIP-1331): refused, as by Apache Kafka without a plug-in.

Apache Kafka 4.4 keeps descriptions of topologies in a plug-in that its operators write in Java, and asks members for
none without one. There are no such plug-ins here.
"""

from anabranch.broker.api.access.groups import reads_group
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.streams_protocol import check_streams_protocol
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

NO_PLUGIN = "The broker has no streams group topology description plugin configured."


def handle(
    serving: Serving, _request: StreamsGroupTopologyDescriptionUpdateRequest, _exchange: Exchange
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """Answer at once."""
    message = NO_PLUGIN
    try:
        check_streams_protocol(serving)
    except KafkaError as refused:
        message = refused.message
    return StreamsGroupTopologyDescriptionUpdateResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=message or None
    )


API = declare(
    StreamsGroupTopologyDescriptionUpdateRequest,
    handle,
    guard=reads_group(StreamsGroupTopologyDescriptionUpdateResponse),
)
