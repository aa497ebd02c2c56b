"""The records of coordinators against the schemas of Apache Kafka 4.3.1, those of streams groups of 4.4.0.

No other implementation in Python has these records, so their newest versions are written down here as Kafka's `Schema`
objects print them: `?` may be null, `<>` are tagged fields. Kafka's tools must be able to read the node's records.
"""

import pytest

import anabranch.protocol.messages.embedded.consumer_offsets
import anabranch.protocol.messages.embedded.share_group_state
import anabranch.protocol.messages.embedded.streams_groups
import anabranch.protocol.messages.embedded.transaction_state
from anabranch.protocol.source import tagged, untagged
from anabranch.protocol.wire import Field, Kind, schema_of

SCHEMAS = {
    "OffsetCommitKey": "{group:string,topic:string,partition:int32}",
    "OffsetCommitValue": "{offset:int64,leader_epoch:int32,metadata:string,commit_timestamp:int64,<0=topic_id:uuid>}",
    "GroupMetadataKey": "{group:string}",
    "GroupMetadataValue": (
        "{protocol_type:string,generation:int32,protocol:?string,leader:?string,current_state_timestamp:int64"
        ",members:[{member_id:string,group_instance_id:?string,client_id:string,client_host:string,rebalance_"
        "timeout:int32,session_timeout:int32,subscription:bytes,assignment:bytes,<>}],<>}"
    ),
    "ConsumerGroupMetadataKey": "{group_id:string}",
    "ConsumerGroupMetadataValue": "{epoch:int32,<0=metadata_hash:int64>}",
    "ConsumerGroupPartitionMetadataKey": "{group_id:string}",
    "ConsumerGroupPartitionMetadataValue": (
        "{topics:[{topic_id:uuid,topic_name:string,num_partitions:int32,partition_metadata:[{partition:int32,"
        "racks:[string],<>}],<>}],<>}"
    ),
    "ConsumerGroupMemberMetadataKey": "{group_id:string,member_id:string}",
    "ConsumerGroupMemberMetadataValue": (
        "{instance_id:?string,rack_id:?string,client_id:string,client_host:string,subscribed_topic_names:[str"
        "ing],subscribed_topic_regex:?string,rebalance_timeout_ms:int32,server_assignor:?string,<0=classic_me"
        "mber_metadata:{session_timeout_ms:int32,supported_protocols:[{name:string,metadata:bytes,<>}],<>}>}"
    ),
    "ConsumerGroupTargetAssignmentMetadataKey": "{group_id:string}",
    "ConsumerGroupTargetAssignmentMetadataValue": "{assignment_epoch:int32,<0=assignment_timestamp:int64>}",
    "ConsumerGroupTargetAssignmentMemberKey": "{group_id:string,member_id:string}",
    "ConsumerGroupTargetAssignmentMemberValue": "{topic_partitions:[{topic_id:uuid,partitions:[int32],<>}],<>}",
    "ConsumerGroupCurrentMemberAssignmentKey": "{group_id:string,member_id:string}",
    "ConsumerGroupCurrentMemberAssignmentValue": (
        "{member_epoch:int32,previous_member_epoch:int32,state:int8,assigned_partitions:[{topic_id:uuid,parti"
        "tions:[int32],<0=assignment_epochs:?[int32]>}],partitions_pending_revocation:[{topic_id:uuid,partiti"
        "ons:[int32],<0=assignment_epochs:?[int32]>}],<>}"
    ),
    "ConsumerGroupRegularExpressionKey": "{group_id:string,regular_expression:string}",
    "ConsumerGroupRegularExpressionValue": "{topics:[string],version:int64,timestamp:int64,<>}",
    "ShareGroupMemberMetadataKey": "{group_id:string,member_id:string}",
    "ShareGroupMemberMetadataValue": (
        "{rack_id:?string,client_id:string,client_host:string,subscribed_topic_names:[string],<>}"
    ),
    "ShareGroupMetadataKey": "{group_id:string}",
    "ShareGroupMetadataValue": "{epoch:int32,metadata_hash:int64,<>}",
    "ShareGroupTargetAssignmentMetadataKey": "{group_id:string}",
    "ShareGroupTargetAssignmentMetadataValue": "{assignment_epoch:int32,<0=assignment_timestamp:int64>}",
    "ShareGroupTargetAssignmentMemberKey": "{group_id:string,member_id:string}",
    "ShareGroupTargetAssignmentMemberValue": "{topic_partitions:[{topic_id:uuid,partitions:[int32],<>}],<>}",
    "ShareGroupCurrentMemberAssignmentKey": "{group_id:string,member_id:string}",
    "ShareGroupCurrentMemberAssignmentValue": (
        "{member_epoch:int32,previous_member_epoch:int32,state:int8,assigned_partitions:[{topic_id:uuid,parti"
        "tions:[int32],<>}],<>}"
    ),
    "ShareGroupStatePartitionMetadataKey": "{group_id:string}",
    "ShareGroupStatePartitionMetadataValue": (
        "{initializing_topics:[{topic_id:uuid,topic_name:string,partitions:[int32],<>}],initialized_topics:[{"
        "topic_id:uuid,topic_name:string,partitions:[int32],<>}],deleting_topics:[{topic_id:uuid,topic_name:s"
        "tring,<>}],<>}"
    ),
    "StreamsGroupMetadataKey": "{group_id:string}",
    "StreamsGroupMetadataValue": (
        "{epoch:int32,metadata_hash:int64,<0=validated_topology_epoch:int32,1=last_assignment_configs:?[{key:"
        "string,value:string,<>}],2=stored_description_topology_epoch:int32,3=failed_description_topology_epo"
        "ch:int32>}"
    ),
    "StreamsGroupMemberMetadataKey": "{group_id:string,member_id:string}",
    "StreamsGroupMemberMetadataValue": (
        "{instance_id:?string,rack_id:?string,client_id:string,client_host:string,rebalance_timeout_ms:int32,"
        "topology_epoch:int32,process_id:string,user_endpoint:{host:string,port:uint16,<>},client_tags:[{key:"
        "string,value:string,<>}],<>}"
    ),
    "StreamsGroupTargetAssignmentMetadataKey": "{group_id:string}",
    "StreamsGroupTargetAssignmentMetadataValue": ("{assignment_epoch:int32,<0=assignment_timestamp:int64>}"),
    "StreamsGroupTargetAssignmentMemberKey": "{group_id:string,member_id:string}",
    "StreamsGroupTargetAssignmentMemberValue": (
        "{active_tasks:[{subtopology_id:string,partitions:[int32],<>}],standby_tasks:[{subtopology_id:string,"
        "partitions:[int32],<>}],warmup_tasks:[{subtopology_id:string,partitions:[int32],<>}],<>}"
    ),
    "StreamsGroupCurrentMemberAssignmentKey": "{group_id:string,member_id:string}",
    "StreamsGroupCurrentMemberAssignmentValue": (
        "{member_epoch:int32,previous_member_epoch:int32,state:int8,active_tasks:[{subtopology_id:string,part"
        "itions:[int32],<0=assignment_epochs:?[int32]>}],standby_tasks:[{subtopology_id:string,partitions:[in"
        "t32],<0=assignment_epochs:?[int32]>}],warmup_tasks:[{subtopology_id:string,partitions:[int32],<0=ass"
        "ignment_epochs:?[int32]>}],active_tasks_pending_revocation:[{subtopology_id:string,partitions:[int32"
        "],<0=assignment_epochs:?[int32]>}],standby_tasks_pending_revocation:[{subtopology_id:string,partitio"
        "ns:[int32],<0=assignment_epochs:?[int32]>}],warmup_tasks_pending_revocation:[{subtopology_id:string,"
        "partitions:[int32],<0=assignment_epochs:?[int32]>}],<>}"
    ),
    "StreamsGroupTopologyKey": "{group_id:string}",
    "StreamsGroupTopologyValue": (
        "{epoch:int32,subtopologies:[{subtopology_id:string,source_topics:[string],source_topic_regex:[string"
        "],state_changelog_topics:[{name:string,partitions:int32,replication_factor:int16,topic_configs:[{key"
        ":string,value:string,<>}],<>}],repartition_sink_topics:[string],repartition_source_topics:[{name:str"
        "ing,partitions:int32,replication_factor:int16,topic_configs:[{key:string,value:string,<>}],<>}],copa"
        "rtition_groups:[{source_topics:[int16],source_topic_regex:[int16],repartition_source_topics:[int16],"
        "<>}],<>}],<>}"
    ),
    "ShareSnapshotKey": "{group_id:string,topic_id:uuid,partition:int32}",
    "ShareSnapshotValue": (
        "{snapshot_epoch:int32,state_epoch:int32,leader_epoch:int32,start_offset:int64,create_timestamp:int64"
        ",write_timestamp:int64,state_batches:[{first_offset:int64,last_offset:int64,delivery_state:int8,deliv"
        "ery_count:int16,<>}],<0=delivery_complete_count:int32>}"
    ),
    "ShareUpdateKey": "{group_id:string,topic_id:uuid,partition:int32}",
    "ShareUpdateValue": (
        "{snapshot_epoch:int32,leader_epoch:int32,start_offset:int64,state_batches:[{first_offset:int64,last_"
        "offset:int64,delivery_state:int8,delivery_count:int16,<>}],<0=delivery_complete_count:int32>}"
    ),
    "TransactionLogKey": "{transactional_id:string}",
    "TransactionLogValue": (
        "{producer_id:int64,producer_epoch:int16,transaction_timeout_ms:int32,transaction_status:int8,transac"
        "tion_partitions:?[{topic:string,partition_ids:[int32],<>}],transaction_last_update_timestamp_ms:int6"
        "4,transaction_start_timestamp_ms:int64,<0=previous_producer_id:int64,1=next_producer_id:int64,2=clie"
        "nt_transaction_version:int16,3=next_producer_epoch:int16>}"
    ),
}


def described(message_type: type, version: int, *, flexible: bool) -> str:
    """A structure in the notation of `SCHEMAS`."""
    schema = schema_of(message_type)
    parts = [f"{f.name}:{_value(f, version, flexible=flexible)}" for f in untagged(schema, version)]
    if flexible:
        tags = [f"{f.tag}={f.name}:{_value(f, version, flexible=True)}" for f in tagged(schema, version)]
        parts.append(f"<{','.join(tags)}>")
    return "{" + ",".join(parts) + "}"


def _value(field: Field, version: int, *, flexible: bool) -> str:
    if isinstance(field.element, Kind):
        text = field.element.name.lower()
    else:
        text = described(field.element, version, flexible=flexible)
    if field.is_array:
        text = f"[{text}]"
    # Kafka's classes do not print that a structure in a tagged field may be null.
    is_shown = field.is_array or isinstance(field.element, Kind)
    return "?" + text if version in field.nullable and is_shown else text


@pytest.mark.parametrize("name", SCHEMAS)
def test_record_has_the_fields_of_apache_kafka(name: str) -> None:
    modules = (
        anabranch.protocol.messages.embedded.consumer_offsets,
        anabranch.protocol.messages.embedded.share_group_state,
        anabranch.protocol.messages.embedded.streams_groups,
        anabranch.protocol.messages.embedded.transaction_state,
    )
    [message_type] = [vars(module)[name] for module in modules if name in vars(module)]
    schema = schema_of(message_type)
    assert schema.versions is not None
    version = schema.versions.last
    assert described(message_type, version, flexible=version in schema.flexible) == SCHEMAS[name]


def test_every_record_is_checked() -> None:
    modules = (
        anabranch.protocol.messages.embedded.consumer_offsets,
        anabranch.protocol.messages.embedded.share_group_state,
        anabranch.protocol.messages.embedded.streams_groups,
        anabranch.protocol.messages.embedded.transaction_state,
    )
    names = {n for m in modules for n, c in vars(m).items() if hasattr(c, "__wire_schema__") and schema_of(c).versions}
    assert names == set(SCHEMAS)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("OffsetCommitKey", 1),
        ("GroupMetadataKey", 2),
        ("ConsumerGroupMetadataKey", 3),
        ("ConsumerGroupPartitionMetadataKey", 4),
        ("ConsumerGroupMemberMetadataKey", 5),
        ("ConsumerGroupTargetAssignmentMetadataKey", 6),
        ("ConsumerGroupTargetAssignmentMemberKey", 7),
        ("ConsumerGroupCurrentMemberAssignmentKey", 8),
        ("ConsumerGroupRegularExpressionKey", 16),
    ],
)
def test_the_version_of_a_key_says_which_record_it_is(name: str, version: int) -> None:
    versions = schema_of(vars(anabranch.protocol.messages.embedded.consumer_offsets)[name]).versions
    assert versions is not None
    assert versions.last == version
