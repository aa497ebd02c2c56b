"""Intended differences from Apache Kafka, each with its reason.

`KNOWN` lists the differences by script. Steps and paths are patterns (`*` matches anything). The
test fails for an entry that covers no difference any more: remove the entry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.differential.answers import ABSENT, CLOSED, Tree

ANY = "<any>"


@dataclass(frozen=True, slots=True)
class Known:
    """A difference in the steps and at the paths that match."""

    step: str
    path: str
    reason: str
    kafka: Tree = ANY
    ours: Tree = ANY
    is_optional: bool = False
    """Not every machine shows this difference."""

    def covers(self, step: str, path: str, kafka: Tree, ours: Tree) -> bool:
        """True if this entry covers the difference."""
        values = (self.kafka in (ANY, kafka)) and (self.ours in (ANY, ours))
        return values and fnmatchcase(step, self.step) and fnmatchcase(path, self.path)


NOT_SERVED = "ApiVersions lists only APIs that are served."
NO_ELR = "min.insync.replicas is a plain default, not a dynamic one of the cluster (KIP-966)."
NO_ID_FOR_NOTHING = "Only created topics have ids, not validated ones."
CREATED_AT_ONCE = (
    "The first request for a topic that it creates is answered when the topic is ready, not with an error before."
)
NAMED_ERROR = "Unknown operations and codecs, and incomplete batches, get a specific error, not an internal one."
NO_CORDON = "No log directories exist that could be cordoned."
TIME_OF_APPEND = "DescribeProducers returns the time of a producer's last append, not the timestamp of its last batch."
CONTROLLERS = "A node's controller has the same addresses as its client listeners."
DEFAULT_OF_RETENTION = "A retention.ms that is set has a default beside it (Apache Kafka: log.retention.hours)."
SAYS_WHY = "Produce describes what is wrong with a batch beside the error code."
SAYS_MORE = "Responses about groups have a message beside the error code."
START_OF_LOG = "Refusals of Produce for known partitions contain the log start offset."
NOT_LOOKED_INTO = (
    "A batch is accepted if its header, its checksum, and its first record or the shape of its compressed frame are "
    "right; Apache Kafka decodes every record. A consumer of a batch with broken records must seek past it."
)
DUPLICATE_TIME = "The answer to a duplicate has a timestamp only for topics with LogAppendTime."
NO_REPEAT_AFTER_THE_END = (
    "A batch with the sequence numbers of one that an abort has dropped gets UNKNOWN_PRODUCER_ID. Apache Kafka "
    "acknowledges it as a duplicate, and librdkafka, which reuses such numbers, then loses a record."
)
STRICT_DECODING = "A negative length other than that of null, and invalid UTF-8, make a frame malformed."

NO_SUCH_BROKER_CONFIG = "Unknown broker configs, and settings that apply only at a start, are refused."
AUTO_CREATE_IS_DYNAMIC = "Topic creation by Metadata can be switched on and off while the node runs."
NO_NONSENSE_KEPT = "log.retention.ms below -1 is refused."
ONE_METADATA_VERSION = "There is no metadata log. metadata.version has one level, which cannot be changed."
ONLY_SERVED_FEATURES = "Only features that are served are named."
OWN_LIMITS = "A node has its own connection limits (setting connections_max)."
NAMED_STORES = "storage.policy, which selects the object store of a topic, is a config."
TABLES = "Configs whose names begin with table. make a topic a table."
NO_METADATA_LOG = "The catalog is a database, not a log, and has no directory."
CHANGE_NUMBERS = "The offset of the catalog is the number of the last change that other nodes must see."
SASL_STATE = (
    "A request that is out of order in an authentication is answered with ILLEGAL_SASL_STATE, where its response has a "
    "field for that, and closes the connection."
)
TOKEN_OF_A_GROUP = "Tokens are for users only."
UNKNOWN_USER = "The exchange of an unknown user fails at the proof, so that nobody learns which users exist."
SCRAM_HEADER = (
    "SCRAM signs what the client has sent, and its last message must repeat the header of the first (RFC 5802)."
)
EPOCH_BEGINS_ONCE = (
    "A state epoch of a share partition begins once. Apache Kafka begins it again, and forgets what has been "
    "acknowledged since."
)
DELETED_IN_PART = "Deleted records are not delivered, also when other records of their batch are left."
VERSIONS: Sequence[Known] = (
    Known("*", "api_keys.*", NOT_SERVED, ours=ABSENT),
    Known(
        "*",
        "api_keys.7[12]",
        "Metrics of clients need no plug-in.",
        ABSENT,
        is_optional=True,
    ),
    Known("*", "supported_features.*", ONLY_SERVED_FEATURES, ours=ABSENT),
    Known("*", "finalized_features.*", ONLY_SERVED_FEATURES, ours=ABSENT),
    Known("*", "supported_features.anabranch.version", "The level of a cluster.", kafka=ABSENT),
    Known("*", "finalized_features.anabranch.version", "The level of a cluster.", kafka=ABSENT),
    Known("*", "supported_features.metadata.version.min_version", ONE_METADATA_VERSION, 7, 33),
)

KNOWN: Mapping[str, Sequence[Known]] = {
    "same_state_epoch": (
        Known("summary v1", "results.*.start_offset", EPOCH_BEGINS_ONCE, 5, 8),
        Known("summary v1", "results.*.delivery_complete_count", EPOCH_BEGINS_ONCE, 0, 1),
        Known("again: leader epochs", "0", EPOCH_BEGINS_ONCE, 0, 2),
        Known("read again v0", "results.*", EPOCH_BEGINS_ONCE),
    ),
    "throttled_changes": (
        Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
        Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
        Known("*", "*.table.*", TABLES, kafka=ABSENT),
    ),
    "api_versions": VERSIONS,
    "expected_brokers": VERSIONS,
    "auto_create": (
        Known("first asked for v9", "topics.ac-first.error_code", CREATED_AT_ONCE, ours="NONE"),
        Known("first asked for v9", "topics.ac-first.partitions.0", CREATED_AT_ONCE, kafka=ABSENT),
        Known(
            "a name that collides v9",
            "topics.ac.collides.error_code",
            "The response says why a topic cannot be created, so that the client does not retry forever.",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "INVALID_TOPIC_EXCEPTION",
        ),
    ),
    "create_topics": (
        Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
        Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
        Known("*", "*.table.*", TABLES, kafka=ABSENT),
        Known("*", "topics.*.topic_id", NO_ID_FOR_NOTHING, ours="00" * 16),
        Known("factor *", "topics.*.error_message", NO_CORDON),
    ),
    "create_topics_with_configs": (
        Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
        Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
        Known("*", "*.table.*", TABLES, kafka=ABSENT),
    ),
    "produce_good": (Known("*", "*.error_message", SAYS_WHY, kafka=None),),
    "produce_bad": (
        Known("*", "*.error_message", SAYS_WHY, kafka=None),
        Known("*", "*.log_start_offset", START_OF_LOG, -1, 0),
        Known("unknown codec *", "*.error_code", NAMED_ERROR, "UNKNOWN_SERVER_ERROR", "UNSUPPORTED_COMPRESSION_TYPE"),
        Known("* without * v9", "*.error_code", NAMED_ERROR, "UNKNOWN_SERVER_ERROR", "INVALID_RECORD"),
        Known("garbage behind *", "*.partition_responses.0.*", NOT_LOOKED_INTO),
        Known(
            "log append time bit *",
            "*.partition_responses.0.*",
            "A batch whose producer set the log append time bit is refused.",
        ),
    ),
    "produce_frames": (
        Known("*", "*.error_message", SAYS_WHY, kafka=None),
        Known("* v9", "*.error_code", NAMED_ERROR, "UNKNOWN_SERVER_ERROR", "INVALID_RECORD"),
    ),
    "produce_limits": (Known("*", "*.error_message", SAYS_WHY, kafka=None),),
    "produce_large_records": (Known("*", "*.error_message", SAYS_WHY, kafka=None),),
    "produce_idempotent": (
        Known("*", "*.error_message", SAYS_WHY, kafka=None),
        Known("two of it at once *", "*.log_start_offset", START_OF_LOG, -1, 0),
        Known("duplicate of *", "*.log_append_time_ms", DUPLICATE_TIME, ours=-1),
        Known("again sequence *", "*.log_append_time_ms", DUPLICATE_TIME, ours=-1),
    ),
    "fetch": (
        Known(
            "negative bytes*",
            "*",
            "A negative size in Fetch means zero: one batch is returned.",
        ),
        Known(
            "isolation level 2 *",
            "*",
            "Any isolation level except 1 means read uncommitted.",
        ),
    ),
    "find_coordinator": (
        Known(
            "of a key of type *", "*error_message", "The message about an unknown type of coordinator names the type."
        ),
    ),
    "describe_configs": (
        Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
        Known("with synonyms v*", "*.retention.ms.synonyms", DEFAULT_OF_RETENTION),
        Known(
            "unknown type v4",
            "results.0.error_message",
            "The message about an unknown type of config resource names it.",
        ),
        Known(
            "broker v*",
            "*.auto.create.topics.enable.read_only",
            AUTO_CREATE_IS_DYNAMIC,
            True,
            False,
        ),
        Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
        Known("*", "*.table.*", TABLES, kafka=ABSENT),
    ),
    "describe_quorum": (
        Known("the quorum v*", "*.log_end_offset", CHANGE_NUMBERS),
        Known("the quorum v*", "*.high_watermark", CHANGE_NUMBERS),
        Known("the quorum v2", "*.replica_directory_id", NO_METADATA_LOG, ours="00" * 16),
        Known("the quorum v2", "nodes.*.listeners", CONTROLLERS),
    ),
    "telemetry": (
        Known(
            "not OTLP v0",
            "error_code",
            "Pushed metrics are decoded at once, not by a plug-in.",
            "NONE",
            "INVALID_RECORD",
        ),
    ),
    "alter_configs": (
        Known("an unknown operation v*", "*", NAMED_ERROR),
        Known("an unknown config of a broker v*", "responses.0.error_*", NO_SUCH_BROKER_CONFIG),
    ),
    "update_features": (
        Known("metadata.version beyond what there is v*", "error_message", ONE_METADATA_VERSION),
        Known("metadata.version down by type * v*", "error_message", ONE_METADATA_VERSION),
    ),
    "broker_configs": (
        Known("what is set for one v4", "*.max.connections.synonyms", OWN_LIMITS),
        Known("*: creation of topics v*", "responses.0.error_*", AUTO_CREATE_IS_DYNAMIC),
        Known("*: an unknown one v*", "responses.0.error_*", NO_SUCH_BROKER_CONFIG),
        Known("*: nothing kept v*", "responses.0.error_*", NO_NONSENSE_KEPT),
    ),
    "transaction_life": (
        Known("produce *", "*.error_message", SAYS_WHY),
        Known("nor produce v9", "*.error_message", SAYS_WHY, kafka=None),
        Known("* v9", "responses.*.log_start_offset", START_OF_LOG, -1, 0),
        Known("produce again v9", "*.log_append_time_ms", DUPLICATE_TIME, ours=-1),
        Known("another with a number that was aborted v9", "responses.*", NO_REPEAT_AFTER_THE_END),
        Known(
            "producers v0",
            "*.last_timestamp",
            TIME_OF_APPEND,
            ours="<now>",
        ),
    ),
    "transaction_life_2": (
        Known("produce with the old epoch v*", "*.error_message", SAYS_WHY, kafka=None),
        Known("produce with the old epoch v*", "*.log_start_offset", START_OF_LOG, -1, 0),
    ),
    "transaction_refusals": (
        Known("produce of another id v9", "*.error_message", SAYS_WHY, kafka=None),
        Known("produce of another id v9", "*.log_start_offset", START_OF_LOG, -1, 0),
    ),
    "consumer_group_life": (Known("described when deleted v1", "groups..error_message", SAYS_MORE, kafka=None),),
    "metadata": (Known("zero id, no name v12", "*", "The name of a topic without name and id is invalid."),),
    "malformed": (
        Known("array of a negative size v1", "", STRICT_DECODING, ours=CLOSED),
        Known("a name that is not UTF-8 v1", "", STRICT_DECODING, ours=CLOSED),
    ),
    "streams_internal_topics": (
        Known("missing internal topics v1", "status.0.status_detail", "Missing topics are sorted by name."),
    ),
    "streams_heartbeats": (Known("described v*", "groups..error_message", SAYS_MORE, None),),
    "streams_group_configs": (
        Known("rack.aware.assignment.tags of a,a v*", "*", "A tag that is named twice counts once."),
    ),
    "share_deleted_records": (
        Known("what is left", "partition 0.2", DELETED_IN_PART, "[(15, 1), (16, 1), (17, 1)]", "[(17, 1)]"),
    ),
    "share_groups_described": (Known("unknown, and without a name v1", "groups..error_message", SAYS_MORE, None),),
    "share_groups_and_other_protocols": (
        Known("a classic member x v9", "member_id", "A refusal names the member that it is for.", ""),
    ),
    "sasl_handshakes": (
        *VERSIONS,
        Known(
            "tokens without requests v0",
            "error_code",
            "Tokens are sent in requests (KIP-152). Clients that send them without are refused.",
            "NONE",
            "UNSUPPORTED_VERSION",
        ),
        Known("instead of a token v3", "node_id", SASL_STATE, -1, 0),
        Known("instead of a token v3", "port", SASL_STATE, -1, 0),
    ),
    "sasl_scram": (
        Known("unknown user v2", "*", UNKNOWN_USER),
        Known("without a credential for the mechanism v2", "*", UNKNOWN_USER),
        Known("another header at the end: *", "*", SCRAM_HEADER),
        Known("an extension at the end: *", "*", SCRAM_HEADER),
    ),
    "sasl_again": (Known("something else v9", "", SASL_STATE, ours=CLOSED),),
    "token_requests": (
        Known("for a group v3", "*", TOKEN_OF_A_GROUP),
        Known("for a group: lifetimes", "*", TOKEN_OF_A_GROUP),
    ),
    "token_sessions": (
        Known("not by token v2", "*", UNKNOWN_USER),
        Known("unknown token v2", "*", UNKNOWN_USER),
        Known("a user's name v2", "*", UNKNOWN_USER),
    ),
}
