"""StreamsGroupTopologyDescriptionUpdate: a member describes the topology of its streams group (KIP-1331).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 93


@message
class TopologyDescriptionNode:
    name: str = wire.string("0+")
    node_type: int = wire.int8("0+")
    source_topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    sink_topic: str | None = wire.string("0+", nullable="0+", default=None)
    stores: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    successors: Sequence[str] = wire.array(wire.Kind.STRING, "0+")


@message
class TopologyDescriptionSubtopology:
    subtopology_id: str = wire.string("0+")
    nodes: Sequence[TopologyDescriptionNode] = wire.array(TopologyDescriptionNode, "0+")


@message
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode = wire.struct(TopologyDescriptionNode, "0+")
    processor: TopologyDescriptionNode = wire.struct(TopologyDescriptionNode, "0+")


@message
class TopologyDescription:
    subtopologies: Sequence[TopologyDescriptionSubtopology] = wire.array(TopologyDescriptionSubtopology, "0+")
    global_stores: Sequence[TopologyDescriptionGlobalStore] = wire.array(TopologyDescriptionGlobalStore, "0+")


@message(versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateRequest:
    group_id: str = wire.string("0+")
    member_id: str = wire.string("0+")
    topology_epoch: int = wire.int32("0+")
    topology_description: TopologyDescription = wire.struct(TopologyDescription, "0+")


@message(versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
