"""Intended differences between three nodes and three brokers of Apache Kafka, as in `known_differences`."""

from collections.abc import Mapping, Sequence

from tests.differential.answers import ABSENT
from tests.differential.known_differences import (
    CHANGE_NUMBERS,
    CONTROLLERS,
    DEFAULT_OF_RETENTION,
    NAMED_STORES,
    NO_CORDON,
    NO_ELR,
    NO_ID_FOR_NOTHING,
    NO_METADATA_LOG,
    SAYS_MORE,
    SAYS_WHY,
    START_OF_LOG,
    TABLES,
    TIME_OF_APPEND,
    VERSIONS,
    Known,
)

ORDER_OF_REPLICAS = "In-sync replicas are listed in the order of the replicas, also after a reassignment."
TAKEN_OVER = "Another node takes over the partitions and groups of a dead one."
LIVING_VOTERS = "The voters are the living nodes."
LEADERS_EARLY = "The leader of a partition that is led elsewhere is named from Fetch version 12 on, not from 16 on."
MARKERS_ELSEWHERE = "WriteTxnMarkers for a partition that is led elsewhere gets a specific error."
COORDINATOR_FIRST = "The coordinator of a transaction is asked before its partitions are looked for."
ALIVE = "A living broker cannot be unregistered."
CREATED = (
    Known("*", "*.min.insync.replicas.config_source", NO_ELR, 3, 5),
    Known("*", "*.storage.policy", NAMED_STORES, kafka=ABSENT),
    Known("*", "*.table.*", TABLES, kafka=ABSENT),
)
QUORUM = (
    Known("the quorum*", "*.log_end_offset", CHANGE_NUMBERS),
    Known("the quorum*", "*.high_watermark", CHANGE_NUMBERS),
    Known("the quorum*", "*.replica_directory_id", NO_METADATA_LOG, ours="00" * 16),
    Known("the quorum*", "nodes.*.listeners.0.*", CONTROLLERS),
)

KNOWN_IN_CLUSTERS: Mapping[str, Sequence[Known]] = {
    "expected_brokers": VERSIONS,
    "quorum_by_each": QUORUM,
    "places_of_topics": (
        *CREATED,
        Known("factor *", "topics.*.topic_id", NO_ID_FOR_NOTHING, ours="00" * 16),
        Known("factor 4*", "topics.*.error_message", NO_CORDON),
    ),
    "reassignments_by_each": (Known("*, described*", "*.isr_nodes.*", ORDER_OF_REPLICAS),),
    "share_group_of_three_brokers": (Known("a heartbeat to another broker v1", "error_message", SAYS_MORE, None),),
    "produce_to_each": (Known("*", "*.error_message", SAYS_WHY, kafka=None),),
    "fetch_from_each": (
        Known("* v1[2345]", "*.current_leader.leader_id", LEADERS_EARLY, -1),
        Known("* v1[2345]", "*.current_leader.leader_epoch", LEADERS_EARLY, -1),
    ),
    "groups_at_others": (Known("described*", "groups.*.error_message", SAYS_MORE, kafka=None),),
    "consumer_groups_at_others": (Known("*", "*error_message", SAYS_MORE, kafka=None),),
    "groups_of_all": (Known("described*", "groups.*.error_message", SAYS_MORE, kafka=None),),
    "transactions_at_others": (
        Known("verified and refused*", "*.partition_error_code", COORDINATOR_FIRST, "UNKNOWN_TOPIC_OR_PARTITION"),
    ),
    "transactions_of_several_leaders": (
        Known("*", "*.error_message", SAYS_WHY, kafka=None),
        Known("*", "responses.*.log_start_offset", START_OF_LOG, -1, 0),
        Known("producers*", "*.last_timestamp", TIME_OF_APPEND, ours="<now>"),
    ),
    "transactions_2_of_several_leaders": (
        Known("*", "*.error_message", SAYS_WHY, kafka=None),
        Known("*", "responses.*.log_start_offset", START_OF_LOG, -1, 0),
    ),
    "transactions_of_all": (
        Known("a marker of nobody's*", "*.error_code", MARKERS_ELSEWHERE, ours="NOT_LEADER_OR_FOLLOWER"),
    ),
    "configs_of_topics": (Known("as set *", "*.retention.ms.synonyms", DEFAULT_OF_RETENTION),),
    "after_the_outage": (
        *QUORUM,
        Known("the quorum*", "topics.0.partitions.0.current_voters.3", LIVING_VOTERS, ours=ABSENT),
        Known("the quorum*", "nodes.3", LIVING_VOTERS, ours=ABSENT),
        Known("partitions of the living produced to*", "*.error_message", SAYS_WHY, kafka=None),
        Known("the topic*", "topics.od-a.partitions.[23].*", TAKEN_OVER),
        Known("its partitions*", "topics.0.partitions.[23].*", TAKEN_OVER),
        Known("partitions of the dead produced to*", "*", TAKEN_OVER),
        Known("partitions of the dead fetched*", "responses.0.partitions.0.*", TAKEN_OVER),
        Known("coordinators*", "coordinators.2.*", TAKEN_OVER),
        Known("log directories*", "results.0.topics.od-a.partitions.[23]", TAKEN_OVER, kafka=ABSENT),
        Known("* election*", "*.partition_result.1.error_*", TAKEN_OVER),
        Known("a living broker unregistered*", "error_*", ALIVE),
    ),
}
