"""Write docs/compatibility.md: every API of Apache Kafka 4.3.1, the versions that a node serves, and the differences.

    python -m scripts.compatibility

It writes docs/kafka-releases.md, too (`scripts.kafka_releases_page`).

The served versions come from the handlers, the differences from the list of the differential test. `NOTES` below has
further remarks, `NOT_SERVED` the other APIs. A test compares the page with the output of this script.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from anabranch.broker.api.declaration import Handler
from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.kafka.configs.broker_table import BROKER_CONFIGS, DYNAMIC
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from scripts import kafka_releases_page
from tests.differential.known_differences import KNOWN
from tests.differential.known_in_clusters import KNOWN_IN_CLUSTERS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
KAFKA_VERSION = "4.3.1"
LINE = 120
NOT_ADVERTISED = {71: "with a plug-in", 72: "with a plug-in"}
"""APIs that Apache Kafka implements but does not list in ApiVersions."""
_ACLS = "Needs `authorizer.enabled`."
_TOKENS = "Needs `delegation_token.secret_key_file`."
_SHARE = "share groups"
_STREAMS = "Streams groups (Kafka Streams uses the classic protocol)"
_QUORUM = "controller quorums (the catalog replaces them)"
NOTES: Mapping[int, str] = {
    0: "0-2 are advertised but refused, as in Apache Kafka: without them librdkafka sends uncompressed.",
    1: "Whole batches only; the last one is never cut.",
    2: "No tiered storage: -4 returns the log start offset, -5 and -6 return nothing.",
    3: "A topic is created before the response. A leader serves, or parks requests for two seconds until it does.",
    10: "Groups and transactions, not share groups.",
    17: "0 is advertised, since librdkafka looks for it, but refused: tokens are sent in requests (KIP-152).",
    27: "In Apache Kafka between brokers; here for administrators who end a hanging transaction.",
    29: _ACLS,
    30: _ACLS,
    31: _ACLS,
    32: "Topics, brokers, loggers, groups (consumer protocol) and client metrics subscriptions.",
    33: "Topics, brokers, groups, subscriptions.",
    34: "A node has one log directory: a replica can only be assigned to it.",
    35: "One log directory. Sizes are bytes in the log and in objects; free space is that of a local object store.",
    36: "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. A wrong token is answered with the error at once; Apache "
    "Kafka sends a challenge first.",
    37: "Refused for internal topics: the coordinator of an existing group would change.",
    38: _TOKENS,
    39: _TOKENS,
    40: _TOKENS,
    41: _TOKENS,
    43: "Preferred: the partition moves to its preferred leader. Unclean: accepts the loss of what only a dead node's "
    "log has, if nobody can open it.",
    44: "Topics, brokers, groups, subscriptions, log levels.",
    45: "A reassignment names one broker.",
    46: "Moves of all kinds that are not carried out yet, drains of nodes included.",
    51: "Each user is changed in a transaction of its own.",
    55: "The living nodes are the voters. Offsets are numbers of changes of the catalog; -1: a node does not answer.",
    57: "`group.version` and `transaction.version`; `metadata.version` has one level.",
    64: "A node that is alive, leads partitions or has a log that is not drained is refused.",
    66: "Patterns are RE2's without Unicode classes.",
    71: "With `telemetry.enabled` and the admin port, which shows the metrics.",
    72: "Gauges and sums, shown on the admin port's metrics page.",
}


class NotServed(NamedTuple):
    """An API that a node does not serve."""

    name: str
    kafka_versions: str
    reason: str


NOT_SERVED: Mapping[int, NotServed] = {
    76: NotServed("ShareGroupHeartbeat", "1", _SHARE),
    77: NotServed("ShareGroupDescribe", "1", _SHARE),
    78: NotServed("ShareFetch", "1-2", _SHARE),
    79: NotServed("ShareAcknowledge", "1-2", _SHARE),
    80: NotServed("AddRaftVoter", "0-1", _QUORUM),
    81: NotServed("RemoveRaftVoter", "0", _QUORUM),
    83: NotServed("InitializeShareGroupState", "0", _SHARE),
    84: NotServed("ReadShareGroupState", "0", _SHARE),
    85: NotServed("WriteShareGroupState", "0-1", _SHARE),
    86: NotServed("DeleteShareGroupState", "0", _SHARE),
    87: NotServed("ReadShareGroupStateSummary", "0-1", _SHARE),
    88: NotServed("StreamsGroupHeartbeat", "0", _STREAMS),
    89: NotServed("StreamsGroupDescribe", "0", _STREAMS),
    90: NotServed("DescribeShareGroupOffsets", "0-1", _SHARE),
    91: NotServed("AlterShareGroupOffsets", "0", _SHARE),
    92: NotServed("DeleteShareGroupOffsets", "0", _SHARE),
}
INTRODUCTION = f"""\
# Compatibility

For developers of clients and tools: the APIs of Apache Kafka {KAFKA_VERSION} that a node serves, and all known
differences between their responses. Generated by `scripts/compatibility.py` from the handlers and the list of the
differential test; do not edit it.

A node lists an API in ApiVersions only if it works. Clients choose features by this list, so a missing API disables
only the features that need it. A node can also present itself [as an older release](kafka-releases.md).
"""
SUMMARY = """
## Known differences in short

Not served, and therefore not advertised: the SASL mechanism GSSAPI; share groups, and the streams protocol of groups
(KIP-932, KIP-1071); controller quorums; tiered storage (KIP-405).

Different by design (the list below this one has what shows in responses):

- A partition has one replica, and the object store keeps the data. Replication factors are accepted up to the
  number of nodes (any factor with `topic.any_replication_factor`), and change nothing; neither does
  `min.insync.replicas`. There are no followers, and no preferred read replica.
- A reassignment hands the partition over to one broker; throttles have no effect. The preferred leader is the one
  at the creation of the partition, or of its last reassignment.
- When a node dies, other nodes take its partitions over within seconds.
- ACLs: a name, principal or host has up to 4096 characters, and a cluster up to `authorizer.acls_max` ACLs.
- Delegation tokens: an expired one is refused at once. A token is for users only, and has up to 8192 characters of
  principals; a cluster has up to `delegation_token.tokens_max` tokens.
- These broker configs can be changed while a node runs, for one node (its id) or for all (the default): {dynamic}.
  So can the defaults of topic configs without effect. They override the
  settings of the node's start, and topics without their own value follow at once. Other names are refused.
- Quotas: [differences](quotas.md#differences-from-apache-kafka).
- By default topics keep their records for seven days, as in Apache Kafka (setting `topic.retention_ms`; -1: forever).
  The config `storage.policy` selects a topic's object store, and `table.enable` and its fellows make it a
  [table](tables.md).
  Accepted and described, but without effect: {no_effect}.
- Served group configs are `consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms`. `metadata.version` has
  one level, 30 (4.3-IV0).
- A group of the consumer protocol computes an assignment at the first heartbeat after a change, as before Kafka
  4.3 (KIP-1263).
- Patterns of topics (groups) and of ids (ListTransactions) use RE2's syntax, and their size is limited.
- While a transaction ends, a request for the next one waits for up to half a second before it gets
  CONCURRENT_TRANSACTIONS, which Apache Kafka answers at once. All else of transactions is answered as there
  (`tests/differential/transaction_matrix`).
"""
DIFFERENCES = """
## Known differences in responses

The differential test (`tests/differential/`) sends the same valid and invalid requests to a node and to Apache
Kafka, then to three nodes and three brokers of which one is killed, and compares the responses field by field, except
ids, times, epochs and addresses. These are all differences it finds (`known_differences.py`, `known_in_clusters.py`),
as what a node does:

"""


def versions(first: int, last: int) -> str:
    """Return a range of versions as text."""
    return str(first) if first == last else f"{first}-{last}"


def row_of(handler: Handler) -> str:
    """Return the row of a served API."""
    api = handler.api
    ours = versions(handler.advertised_min_version, handler.max_version)
    kafkas = NOT_ADVERTISED.get(api.key) or versions(api.advertised_min_version, api.max_version)
    served = ours if kafkas == ours else f"{ours} (Apache Kafka: {kafkas})"
    return f"| {api.key} | {api.name} | {served} | {NOTES.get(api.key, '')} |"


def table() -> Iterator[str]:
    """Return the table of APIs, line by line."""
    yield "| key | API | versions | notes |"
    yield "|---:|---|---|---|"
    rows = {key: row_of(handler) for key, handler in HANDLERS.items()}
    for _, row in sorted(rows.items()):
        yield row


def not_served() -> Iterator[str]:
    """Return a line for each reason, with the APIs that are not served for it."""
    yield "\nNot served, with the versions of Apache Kafka:\n"
    for reason in dict.fromkeys(api.reason for api in NOT_SERVED.values()):
        apis = (f"{key} {api.name} {api.kafka_versions}" for key, api in NOT_SERVED.items() if api.reason == reason)
        yield fill(f"- {reason}: {', '.join(apis)}", LINE, subsequent_indent="  ", break_on_hyphens=False)


def differences() -> Iterator[str]:
    """Return each known difference once."""
    known = [
        entry for script in (KNOWN, KNOWN_IN_CLUSTERS) for _, entries in sorted(script.items()) for entry in entries
    ]
    yield from (f"- {reason}" for reason in dict.fromkeys(entry.reason for entry in known))


def summary() -> str:
    """Return the known differences in short."""
    without = [f"`{name}`" for name, config in sorted(TOPIC_CONFIGS.items()) if "no effect" in config.documentation]
    dynamic = [f"`{name}`" for name in sorted(DYNAMIC) if "no effect" not in BROKER_CONFIGS[name].documentation]
    return fill_items(SUMMARY.format(no_effect=", ".join(without), dynamic=", ".join(dynamic)))


def fill_items(text: str) -> str:
    """Wrap the items of a list."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and line.startswith("  ") and lines[-1].startswith("- "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(
        fill(line, LINE, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        if line.startswith("- ")
        else line
        for line in lines
    )


def page() -> str:
    """Return the whole page."""
    served = len(HANDLERS.keys() - NOT_ADVERTISED.keys())
    total = served + len(NOT_SERVED)
    lines = [
        f"\n{served} of the {total} APIs that Apache Kafka advertises are served, in its versions unless noted.\n",
        *table(),
        *not_served(),
    ]
    return INTRODUCTION + "\n".join(lines) + "\n" + summary() + "\n" + DIFFERENCES + "\n".join(differences()) + "\n"


if __name__ == "__main__":
    for path, text in ((PAGE, page()), (kafka_releases_page.PAGE, kafka_releases_page.page())):
        path.write_text(text)
        print(f"written: {path}")
