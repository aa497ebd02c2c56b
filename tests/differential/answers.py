"""Answers as trees of plain values, for the comparison of two brokers.

Values that a broker may choose freely are replaced by comparable ones: an id by its number in the order of appearance,
a time by `<now>`, an epoch by `<epoch>`, a throttle time by `<throttled>`. Special values such as -1 and 0 stay. Error
codes become their names. Record batches are decoded, records included."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.protocol.batch import check_crc, iterate_batches
from anabranch.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from anabranch.protocol.records import control_record, decode_records
from anabranch.protocol.wire import ZERO_UUID

Tree = Any
"""None, bool, int, float, str, or a dict or list of trees."""

NOW_MS = range(1_750_000_000_000, 3_500_000_000_000)
"""Times of the brokers' clocks; scripts put earlier and later ones into records."""
CLOSED = "<connection closed>"
ABSENT = "<absent>"
NO_ANSWER = "<no answer>"

SCRAM_SECRETS = re.compile(rb"(?<=r=)[^,]+|(?<=s=)[^,]+|(?<=v=)[^,]+")
"""Nonces, salts and signatures."""
NUMBER = re.compile(r"\b\d{13}\b")

EPOCHS = frozenset(
    {
        "leader_epoch",
        "committed_leader_epoch",
        "partition_leader_epoch",
        "coordinator_epoch",
        "finalized_features_epoch",
    }
)
TIMES = frozenset(
    {
        "transaction_start_time_ms",
        "last_timestamp",
        "log_append_time_ms",
        "timestamp",
        "max_timestamp",
        "base_timestamp",
        "timestamp_ms",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "issue_timestamp",
        "issue_timestamp_ms",
        "expiry_timestamp",
        "expiry_timestamp_ms",
        "max_timestamp_ms",
    }
)
SIZES = frozenset({"total_bytes", "usable_bytes"})
IDS: Mapping[str, str] = {
    "topic_id": "topic",
    "cluster_id": "cluster",
    "member_id": "member",
    "leader": "member",
    "producer_id": "producer",
    "session_id": "session",
    "log_dir": "directory",
    "token_id": "token",
}
FRESH_IDS = frozenset({"client_instance_id", "subscription_id"})
"""Ids of which there is a new one in each answer."""
NONE_IDS = frozenset({"", None, -1, ZERO_UUID})
KEYED: Mapping[str, Callable[[Any], object]] = {
    "MetadataResponse.brokers": lambda broker: broker["node_id"],
    "Member.subscribed_topic_names": str,
    "Assignment.topic_partitions": lambda topic: topic.get("topic_name") or topic["topic_id"],
    "DescribeClusterResponse.brokers": lambda broker: broker["broker_id"],
    "DescribeQuorumResponse.nodes": lambda node: node["node_id"],
    "PartitionDataResponse.current_voters": lambda voter: voter["replica_id"],
    "ProduceResponse.node_endpoints": lambda node: node["node_id"],
    "FetchResponse.node_endpoints": lambda node: node["node_id"],
    "MetadataResponse.topics": lambda topic: topic["name"] or topic["topic_id"],
    "MetadataResponseTopic.partitions": lambda partition: partition["partition_index"],
    "ListOffsetsTopicResponse.partitions": lambda partition: partition["partition_index"],
    "OffsetForLeaderTopicResult.partitions": lambda partition: partition["partition"],
    "DeleteRecordsTopicResult.partitions": lambda partition: partition["partition_index"],
    "WritableTxnMarkerTopicResult.partitions": lambda partition: partition["partition_index"],
    "DescribeGroupsResponse.groups": lambda group: group["group_id"],
    "CreateTopicsResponse.topics": lambda topic: topic["name"],
    "CreatableTopicResult.configs": lambda config: config["name"],
    "DeleteTopicsResponse.responses": lambda topic: topic["name"] or topic["topic_id"],
    "CreatePartitionsResponse.results": lambda topic: topic["name"],
    "DescribeConfigsResult.configs": lambda config: config["name"],
    "JoinGroupResponse.members": lambda member: member["group_instance_id"] or member["member_id"],
    "DescribedGroup.members": lambda member: member.get("group_instance_id") or member["member_id"],
    "ProduceResponse.responses": lambda topic: topic["name"] or topic["topic_id"],
    "TopicProduceResponse.partition_responses": lambda partition: partition["index"],
    "OffsetCommitResponseTopic.partitions": lambda partition: partition["partition_index"],
    "TxnOffsetCommitResponseTopic.partitions": lambda partition: partition["partition_index"],
    "OffsetDeleteResponseTopic.partitions": lambda partition: partition["partition_index"],
    "ConsumerGroupDescribeResponse.groups": lambda group: group["group_id"],
    "ShareGroupDescribeResponse.groups": lambda group: group["group_id"],
    "StreamsGroupDescribeResponse.groups": lambda group: group["group_id"],
    "DescribeShareGroupOffsetsResponse.groups": lambda group: group["group_id"],
    "DescribeShareGroupOffsetsResponseGroup.topics": lambda topic: topic["topic_name"],
    "DescribeShareGroupOffsetsResponseTopic.partitions": lambda partition: partition["partition_index"],
    "AlterShareGroupOffsetsResponse.responses": lambda topic: topic["topic_name"],
    "AlterShareGroupOffsetsResponseTopic.partitions": lambda partition: partition["partition_index"],
    "DeleteShareGroupOffsetsResponse.responses": lambda topic: topic["topic_name"],
    "ListTransactionsResponse.transaction_states": lambda one: one["transactional_id"],
    "DescribeTransactionsResponse.transaction_states": lambda one: one["transactional_id"],
    "AddPartitionsToTxnTopicResult.results_by_partition": lambda partition: partition["partition_index"],
    "AddPartitionsToTxnResponse.results_by_topic_v3_and_below": lambda topic: topic["name"],
    "TopicData.partitions": lambda index: index,
    "InitializeShareGroupStateResponse.results": lambda topic: topic["topic_id"],
    "InitializeStateResult.partitions": lambda partition: partition["partition"],
    "ReadShareGroupStateResponse.results": lambda topic: topic["topic_id"],
    "ReadStateResult.partitions": lambda partition: partition["partition"],
    "WriteShareGroupStateResponse.results": lambda topic: topic["topic_id"],
    "WriteStateResult.partitions": lambda partition: partition["partition"],
    "DeleteShareGroupStateResponse.results": lambda topic: topic["topic_id"],
    "DeleteStateResult.partitions": lambda partition: partition["partition"],
    "ReadShareGroupStateSummaryResponse.results": lambda topic: topic["topic_id"],
    "ReadStateSummaryResult.partitions": lambda partition: partition["partition"],
    "TransactionState.topics": lambda topic: topic["topic"],
    "WritableTxnMarkerResult.topics": lambda topic: topic["name"],
    "DeleteGroupsResponse.results": lambda group: group["group_id"],
    "ListGroupsResponse.groups": lambda group: group["group_id"],
    "ApiVersionsResponse.api_keys": lambda api: api["api_key"],
    "ApiVersionsResponse.supported_features": lambda feature: feature["name"],
    "ApiVersionsResponse.finalized_features": lambda feature: feature["name"],
    "DescribeLogDirsResult.topics": lambda topic: topic["name"],
    "DescribeLogDirsTopic.partitions": lambda partition: partition["partition_index"],
    "AlterReplicaLogDirTopicResult.partitions": lambda partition: partition["partition_index"],
    "ElectLeadersResponse.replica_election_results": lambda topic: topic["topic"],
    "SaslHandshakeResponse.mechanisms": lambda mechanism: mechanism,
    "DescribeDelegationTokenResponse.tokens": lambda token: token["token_id"],
    "AlterUserScramCredentialsResponse.results": lambda result: result["user"],
    "DescribeUserScramCredentialsResponse.results": lambda result: result["user"],
    "DescribeUserScramCredentialsResult.credential_infos": lambda info: info["mechanism"],
    "DescribeClientQuotasResponse.entries": lambda entry: str(entry["entity"]),
    "AlterClientQuotasResponse.entries": lambda entry: str(entry["entity"]),
    "EntryData.entity": lambda part: part["entity_type"],
    "EntryDataResponse.entity": lambda part: part["entity_type"],
    "EntryData.values": lambda value: value["key"],
    "ListConfigResourcesResponse.config_resources": lambda one: f"{one['resource_type']} {one['resource_name']}",
}
"""Convert lists whose order has no meaning to dicts, by the field that identifies their elements."""


class Symbols:
    """Names for a broker's ids, in the order in which they appear."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, object], str] = {}
        self._counts: dict[str, int] = {}

    def name(self, kind: str, value: object, of: str | None = None) -> str:
        """The name of an id; `of` is the name of the thing it first appeared with, if any."""
        if (kind, value) not in self._names:
            base = f"{kind} of {of}" if of else kind
            self._counts[base] = self._counts.get(base, 0) + 1
            self._names[kind, value] = (
                f"<{base}>" if of and self._counts[base] == 1 else f"<{base} {self._counts[base]}>"
            )
        return self._names[kind, value]


class Normal:
    """Makes trees of one broker's answers."""

    def __init__(self, symbols: Symbols, ports: Mapping[int, str], choices: Mapping[str, str] | None = None) -> None:
        """`ports` names the ports that brokers listen on, `choices` the fields in which any broker may be named."""
        self._symbols = symbols
        self._ports = ports
        self._choices = choices or {}

    def tree(self, message: object) -> Tree:
        """The tree of a decoded message."""
        return self._value("", message)

    def _value(self, field: str, value: Any) -> Tree:
        if dataclasses.is_dataclass(value):
            return self._struct(value)
        if field == "records":
            return self._records(value)
        if field in IDS and value not in NONE_IDS and (field, value) != ("session_id", 0):
            return self._symbols.name(IDS[field], value)
        if field == "auth_bytes":
            return SCRAM_SECRETS.sub(b"<secret>", value).decode()
        if field == "hmac":
            return f"<{len(value)} bytes>"
        if field in FRESH_IDS and value not in (0, ZERO_UUID):
            return "<id>"
        if isinstance(value, memoryview | bytearray | bytes):
            return bytes(value).hex()
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._value("", item) for item in value]
        if field.endswith("error_code"):
            return error_name(value)
        if field in EPOCHS and value >= 0:
            return "<epoch>"
        if field in TIMES and value in NOW_MS:
            return "<now>"
        if field.endswith("message") and value is not None:
            return NUMBER.sub(lambda number: "<now>" if int(number[0]) in NOW_MS else number[0], value)
        if field == "throttle_time_ms" and value > 0:
            return "<throttled>"
        if field in SIZES and value > 0:
            return "<size>"
        if field == "port" and value in self._ports:
            return self._ports[value]
        return value

    def _struct(self, message: Any) -> Tree:
        tree: dict[str, Tree] = {}
        topic_id = getattr(message, "topic_id", ZERO_UUID)
        if topic_id != ZERO_UUID:
            self._symbols.name("topic", topic_id, getattr(message, "name", None))
        for field in dataclasses.fields(message):
            value = self._value(field.name, getattr(message, field.name))
            key = KEYED.get(f"{type(message).__name__}.{field.name}")
            tree[field.name] = _keyed(value, key) if key and value is not None else value
            if isinstance(value, int) and value >= 0:
                tree[field.name] = self._choices.get(f"{type(message).__name__}.{field.name}", value)
        return tree

    def _records(self, records: Any) -> Tree:
        if records is None:
            return None
        whole = memoryview(records)[: _whole_batches_bytes(records)]
        try:
            return [self._batch(header, batch) for header, batch in iterate_batches(whole)]
        except (ProtocolError, KafkaError) as error:
            return f"<{type(error).__name__}>"

    def _batch(self, header: Any, batch: memoryview) -> Tree:
        tree = {name: self._value(name, value) for name, value in header._asdict().items()}
        try:
            check_crc(batch, header)
            tree["crc"] = "right"
        except CorruptBatch:
            tree["crc"] = "wrong"
        if header.is_control:
            tree["control"] = control_record(batch)[0]  # the other field is the coordinator's epoch
            return tree
        tree["payload"] = hashlib.sha256(batch[61:]).hexdigest()[:16]
        tree["record"] = [
            {
                "offset": record.offset,
                "timestamp": self._value("timestamp", record.timestamp_ms),
                "key": self._value("", record.key),
                "value": self._value("", record.value)[:200] if record.value is not None else None,
                "headers": [[name, self._value("", content)] for name, content in record.headers],
            }
            for record in decode_records(batch)
        ]
        return tree


def error_name(code: int) -> str:
    """The name of an error code, or the code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _whole_batches_bytes(records: Any) -> int:
    """Without the batch at the end that a limit has cut: clients pass it over, and a node here never sends one."""
    position = 0
    while position + 12 <= len(records):
        size = 12 + int.from_bytes(records[position + 8 : position + 12], "big")
        if position + size > len(records):
            break
        position += size
    return position


def _keyed(items: Sequence[Tree], key: Callable[[Any], object]) -> Tree:
    tree: dict[str, Tree] = {}
    for item in items:
        name = str(key(item))
        while name in tree:
            name += " again"
        tree[name] = item
    return tree


def differences(kafka: Tree, ours: Tree, path: str = "") -> list[tuple[str, Tree, Tree]]:
    """Differences between two trees: path of the field, Apache Kafka's value, the node's value."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        return [
            found
            for key in sorted(kafka.keys() | ours.keys())
            for found in differences(kafka.get(key, ABSENT), ours.get(key, ABSENT), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        pairs = enumerate(zip(kafka, ours, strict=True))
        return [found for at, (one, other) in pairs for found in differences(one, other, f"{path}.{at}".lstrip("."))]
    return [] if kafka == ours and type(kafka) is type(ours) else [(path, kafka, ours)]
