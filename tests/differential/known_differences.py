"""What differs from Apache Kafka and is meant to, each with its reason.

`KNOWN` lists the differences by script. Steps and paths are patterns (`*` stands for anything). An entry that covers
nothing any more fails the test: then the difference is gone, and so should be the entry.
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
    """It need not be there on every machine."""

    def covers(self, step: str, path: str, kafka: Tree, ours: Tree) -> bool:
        """Whether a difference found is this one."""
        values = (self.kafka in (ANY, kafka)) and (self.ours in (ANY, ours))
        return values and fnmatchcase(step, self.step) and fnmatchcase(path, self.path)


NOT_SERVED = "ApiVersions names an API only when it is served."
NO_ELR = (
    "With eligible leader replicas (KIP-966) Apache Kafka keeps min.insync.replicas as a dynamic default of the "
    "cluster. A partition here has one replica, and the default is a default."
)
NO_ID_FOR_NOTHING = "Apache Kafka gives an id even to a topic that is only validated; here an id is of a topic."
CREATED_AT_ONCE = (
    "Apache Kafka answers the first request for a topic it creates with an error, before the topic is there. Here the "
    "answer comes when the topic serves."
)
KEPT_FOR_EVER = "A node keeps records until it is told otherwise (setting retention_ms)."
SAYS_WHY = "Apache Kafka gives the code alone. Here a message says what is wrong with the batch."
SAYS_MORE = "Apache Kafka gives the code alone. Here it comes with its meaning."
START_OF_LOG = (
    "Apache Kafka leaves the start of the log out of some refusals. Here a partition that is known has it in all."
)
NOT_LOOKED_INTO = (
    "Apache Kafka reads every record of a batch. Here a batch is taken as the producer made it when its header agrees "
    "with itself and with its checksum, and the first record, or the codec's frame, begins as it should: more would be "
    "work for each record. A consumer of such a batch fails on it, as on any corrupt batch, and has to seek past it."
)
DUPLICATE_TIME = (
    "Apache Kafka answers a duplicate with its batch's largest timestamp as if the broker had set it. "
    "Here that field is of topics with LogAppendTime."
)
STRICT_DECODING = (
    "Apache Kafka takes any negative length for null, and puts U+FFFD for what is not UTF-8. "
    "Here such a frame is malformed."
)

NO_SUCH_BROKER_CONFIG = (
    "Apache Kafka keeps any name for a broker's plug-ins. Here a name that has no meaning, or is a setting of a node's "
    "start, is refused."
)
AUTO_CREATE_IS_DYNAMIC = "Creation of topics by Metadata can be switched while the node runs."
NO_NONSENSE_KEPT = "Apache Kafka takes any number for log.retention.ms and follows only those from -1 on."
ONE_METADATA_VERSION = "There is no log of metadata, and so one level of metadata.version, which cannot be changed."
OWN_LIMITS = "A node has limits of its own for connections (setting connections_max)."
NAMED_STORES = "A topic chooses its object store by storage.policy, which Apache Kafka does not have."
GROUP_CONFIGS_WITH_EFFECT = "Only those configs of groups are served that have an effect here: the consumer protocol's."
NO_METADATA_LOG = "The catalog is a database, not a log: it has no offsets and no directory."

KNOWN: Mapping[str, Sequence[Known]] = {
    "api_versions": (
        Known("*", "api_keys.*", NOT_SERVED, ours=ABSENT),
        Known(
            "*",
            "api_keys.7[12]",
            "Apache Kafka takes metrics of clients only with a plug-in.",
            ABSENT,
            is_optional=True,
        ),
        Known("*", "supported_features.*", "Only features that are served are named.", ours=ABSENT),
        Known("*", "finalized_features.*", "Only features that are served are named.", ours=ABSENT),
        Known("*", "supported_features.metadata.version.min_version", ONE_METADATA_VERSION, 7, 30),
    ),
    "auto_create": (
        Known("first asked for v9", "topics.ac-first.error_code", CREATED_AT_ONCE, ours="NONE"),
        Known("first asked for v9", "topics.ac-first.partitions.0", CREATED_AT_ONCE, kafka=ABSENT),
        Known(
            "a name that collides v9",
            "topics.ac.collides.error_code",
            "Apache Kafka lets the client ask again and again for a topic it can never create. Here it is told why.",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "INVALID_TOPIC_EXCEPTION",
        ),
    ),
    "create_topics": (
        Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
        Known("*", "*.retention.ms.value", KEPT_FOR_EVER, ours="-1"),
        Known("*", "*.retention.ms.config_source", KEPT_FOR_EVER, 5, 4),
        Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
        Known("*", "topics.*.topic_id", NO_ID_FOR_NOTHING, ours="00" * 16),
        Known("factor *", "topics.*.error_message", "There are no log directories that could be cordoned."),
    ),
    "create_topics_with_configs": (
        Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
        Known("*", "*.retention.ms.value", KEPT_FOR_EVER, ours="-1"),
        Known("*", "*.retention.ms.config_source", KEPT_FOR_EVER, 5, 4),
        Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
    ),
    "produce_good": (Known("*", "*.error_message", SAYS_WHY, kafka=None),),
    "produce_bad": (
        Known("*", "*.error_message", SAYS_WHY, kafka=None),
        Known("*", "*.log_start_offset", START_OF_LOG, -1, 0),
        Known(
            "unknown codec *",
            "*.error_code",
            "Apache Kafka fails inside; here the error is named.",
            "UNKNOWN_SERVER_ERROR",
            "UNSUPPORTED_COMPRESSION_TYPE",
        ),
        Known(
            "* without * v9",
            "*.error_code",
            "Apache Kafka fails inside; here the error is named.",
            "UNKNOWN_SERVER_ERROR",
            "INVALID_RECORD",
        ),
        Known("garbage behind *", "*.partition_responses.0.*", NOT_LOOKED_INTO),
        Known(
            "log append time bit *",
            "*.partition_responses.0.*",
            "Apache Kafka keeps a batch whose producer claims that the broker has set its time. Here that is refused.",
        ),
    ),
    "produce_limits": (Known("*", "*.error_message", SAYS_WHY, kafka=None),),
    "produce_idempotent": (
        Known("*", "*.error_message", SAYS_WHY, kafka=None),
        Known("two of it at once *", "*.log_start_offset", START_OF_LOG, -1, 0),
        Known("duplicate of *", "*.log_append_time_ms", DUPLICATE_TIME, ours=-1),
        Known("again sequence *", "*.log_append_time_ms", DUPLICATE_TIME, ours=-1),
    ),
    "fetch": (
        Known("negative bytes*", "*", "Apache Kafka fails inside. Here it is as good as no bytes: one batch comes."),
        Known("isolation level 2 *", "*", "Apache Kafka fails inside. Here any level but 1 is read uncommitted."),
    ),
    "find_coordinator": (
        Known("of a key of type *", "*error_message", "Apache Kafka gives its general words; here the type is named."),
    ),
    "describe_configs": (
        Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
        Known("with synonyms v*", "*.retention.ms.synonyms", KEPT_FOR_EVER),
        Known("unknown type v4", "results.0.error_message", "Apache Kafka gives its general words."),
        Known(
            "broker v*",
            "*.auto.create.topics.enable.read_only",
            AUTO_CREATE_IS_DYNAMIC,
            True,
            False,
        ),
        Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
        Known("unknown group v4", "*", GROUP_CONFIGS_WITH_EFFECT, ours=ABSENT),
    ),
    "group_configs": (Known("all of its configs v4", "*", GROUP_CONFIGS_WITH_EFFECT, ours=ABSENT),),
    "describe_quorum": (
        Known("the quorum v*", "*.log_end_offset", NO_METADATA_LOG, ours=0),
        Known("the quorum v*", "*.high_watermark", NO_METADATA_LOG, ours=0),
        Known("the quorum v2", "*.replica_directory_id", NO_METADATA_LOG, ours="00" * 16),
        Known("the quorum v2", "nodes.0.listeners.0.*", "A node's controller is reached where its clients connect."),
    ),
    "telemetry": (
        Known(
            "not OTLP v0",
            "error_code",
            "Apache Kafka leaves it to its plug-in to read what is pushed. Here it is read at once.",
            "NONE",
            "INVALID_RECORD",
        ),
    ),
    "alter_configs": (
        Known("an unknown operation v*", "*", "Apache Kafka fails inside; here the error is named."),
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
        Known(
            "producers v0",
            "*.last_timestamp",
            "Apache Kafka gives the timestamp of the last batch, here it is the time of the append.",
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
    "metadata": (Known("zero id, no name v12", "*", "Apache Kafka fails inside; here the name is invalid."),),
    "malformed": (
        Known("array of a negative size v1", "", STRICT_DECODING, ours=CLOSED),
        Known("a name that is not UTF-8 v1", "", STRICT_DECODING, ours=CLOSED),
    ),
}
