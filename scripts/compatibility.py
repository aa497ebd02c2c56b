"""Write docs/compatibility.md: every API of Apache Kafka 4.3.1, what of it a node serves, and what differs.

    python -m scripts.compatibility

The versions served come from the handlers, the differences from the list that the differential test holds the node to;
a test compares the page with what this script makes. What is said about an API beyond that is in `NOTES` below.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill

from broker.configs.broker_table import BROKER_CONFIGS, DYNAMIC
from broker.configs.topic_table import TOPIC_CONFIGS
from broker.handlers import HANDLERS
from protocol.registry import Api, all_apis
from tests.differential.known_differences import KNOWN

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
KAFKA_VERSION = "4.3.1"
LINE = 120
NOT_ADVERTISED = {71: "only with a metrics plug-in", 72: "only with a metrics plug-in"}
"""APIs that Apache Kafka has messages of but does not name in ApiVersions."""
_SECURITY = "Comes with authentication and authorisation; until then everybody may do everything."
_QUOTAS = "Comes with quotas; until then nobody is throttled."
_SHARE = "Share groups are not served."
_STREAMS = "The streams protocol is not served; Kafka Streams uses the classic one."
_QUORUM = "There is no quorum of controllers: a catalog in a database takes its place."
NOTES: Mapping[int, str] = {
    0: "0 to 2 are named for librdkafka, which else sends uncompressed, and refused, as in Apache Kafka.",
    1: "Whole batches only; the last one is never cut. Followers do not fetch: a partition has one replica.",
    2: "Nothing is tiered: -4 is the start of the log, -5 and -6 find nothing.",
    3: "A topic is created before the answer; a leader is named only when it serves.",
    10: "Groups and transactions; not share groups.",
    17: _SECURITY,
    19: "One replica: a replication factor other than 1 or -1 is refused.",
    27: "Between brokers; here for administrators that end a hanging transaction.",
    29: _SECURITY,
    30: _SECURITY,
    31: _SECURITY,
    32: "Topics, brokers, loggers, groups (consumer protocol) and subscriptions to metrics of clients.",
    33: "Topics, brokers, groups, subscriptions.",
    34: "A node has one directory: a replica can only be asked to stay there.",
    35: "One directory, the node's; sizes are bytes in the log and in objects, room is that of a local object store.",
    36: _SECURITY,
    38: _SECURITY,
    39: _SECURITY,
    40: _SECURITY,
    41: _SECURITY,
    43: "A partition has one replica, which leads: an election is never needed.",
    44: "Topics, brokers, groups, subscriptions, levels of loggers.",
    45: "A cluster has one node: the assignment there is can be asked for again, any other is refused.",
    46: "Nothing is ever under way.",
    48: _QUOTAS,
    49: _QUOTAS,
    50: _SECURITY,
    51: _SECURITY,
    55: "The node is the one voter; a catalog in a database takes the place of the log of metadata, so offsets are 0.",
    57: "`group.version` and `transaction.version`; `metadata.version` has one level.",
    64: "A node that lives or leads partitions is not forgotten.",
    66: "Patterns are RE2's without Unicode classes.",
    71: "With `telemetry.enabled`, while the admin port is on: what clients push is read there.",
    72: "Gauges and sums, shown on the admin port's metrics page.",
    76: _SHARE,
    77: _SHARE,
    78: _SHARE,
    79: _SHARE,
    80: _QUORUM,
    81: _QUORUM,
    83: _SHARE,
    84: _SHARE,
    85: _SHARE,
    86: _SHARE,
    87: _SHARE,
    88: _STREAMS,
    89: _STREAMS,
    90: _SHARE,
    91: _SHARE,
    92: _SHARE,
}
INTRODUCTION = f"""\
# Compatibility

What a node serves of the protocol of Apache Kafka {KAFKA_VERSION}, and how its answers differ. Made by
`scripts/compatibility.py` from the handlers and the list that the differential test works with; do not edit it.

A node names an API in ApiVersions only when it works. Clients choose by that table, so that an API that is missing
costs what needs it and nothing else.
"""
SUMMARY = f"""
## Known differences in short

Everything in which a node is known to differ from Apache Kafka {KAFKA_VERSION}.

Not served, and therefore not advertised:

- authentication and authorisation: SASL, TLS, ACLs, SCRAM users, delegation tokens;
- quotas;
- share groups, and the streams protocol of groups (KIP-932, KIP-1071);
- a quorum of controllers, and adding and removing its voters.

Different by design:

- A cluster has one node and a partition one replica: other replication factors and reassignments are refused, elections
  are never needed, nobody fetches as a follower, no other replica is preferred for reading.
- A catalog in a database takes the place of the log of metadata: DescribeQuorum has the node as its only voter, and
  offsets of 0.
- Configs of a broker that can be changed while it runs, for one (its id) or for all (the default): {{dynamic}}; beside
  them those that are defaults of topics' configs without effect. They go before the settings of a node's start, and
  topics without a value of their own follow at once. `auto.create.topics.enable` is one of them, which it is not in
  Apache Kafka; any other name, and a value that is not allowed, is refused. There are no quotas, and so no defaults of
  quotas.
- Topics keep their records until told otherwise (`retention.ms` is -1); a topic chooses its object store by
  `storage.policy`. Taken, described and without effect: {{no_effect}}.
- Of the configs of groups, `consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms` are served; of features,
  `group.version` and `transaction.version`; `metadata.version` has one level, 30 (4.3-IV0), which tools read and nobody
  can change.
- A group of the consumer protocol assigns with the first heartbeat after a change. Apache Kafka puts changes of a
  second together (KIP-1263, `group.consumer.assignment.interval.ms`, 1000), to compute less in large groups; here a
  group acts as if that were 0, as in versions before 4.3, so that a member has its partitions sooner, and members that
  join one after the other may move partitions more often.
- Metadata creates a topic before it answers, and says at once why one cannot be created. An id is of a topic that
  exists: one that was only validated has none.
- `min.insync.replicas` is a plain default, not one that eligible leader replicas (KIP-966) set.
- Nothing is tiered as in KIP-405: ListOffsets for -4 is the start of the log, for -5 and -6 nothing.
- A batch is checked by its header, its checksum and the beginning of its first record or compressed frame, not record
  by record. One whose producer claims that the broker has set its time is refused.
- Metrics of clients are taken without a plug-in when `telemetry.enabled` says so, and read at once.
- Patterns of topics (groups) and of ids (ListTransactions) are RE2's without Unicode classes, and bounded in size.
- Frames are decoded strictly: negative lengths other than -1, and text that is not UTF-8, are malformed.
- Errors say what is wrong where Apache Kafka gives its general words or the code alone, or fails inside.
- Single fields: refusals of Produce have the start of the log; a duplicate batch has a time of append only in a topic
  with LogAppendTime; the last timestamp of a producer (DescribeProducers) is when its last batch was appended; a Fetch
  for negative bytes brings one batch, and one at an unknown isolation level reads uncommitted.
"""
DIFFERENCES = """
## Known differences, answer by answer

The differential test (`tests/differential/`) sends the same requests, valid and invalid, to a node and to Apache Kafka
and compares the answers field by field, but for ids, times, epochs and addresses. These are all the differences it
meets, by the script that meets them. A request is named as in the script; `*` stands for anything, and a field that is
not named means the whole answer.

"""


def versions(first: int, last: int) -> str:
    """A range of versions as text."""
    return str(first) if first == last else f"{first} to {last}"


def kafka_versions(api: Api) -> str:
    """What Apache Kafka advertises of an API."""
    return NOT_ADVERTISED.get(api.key) or versions(api.advertised_min_version, api.max_version)


def our_versions(api: Api) -> str:
    """What a node advertises of an API."""
    handler = HANDLERS.get(api.key)
    return "no" if handler is None else versions(handler.advertised_min_version, handler.max_version)


def table() -> Iterator[str]:
    """The table of APIs, line by line."""
    yield "| key | API | served | Apache Kafka | notes |"
    yield "|---:|---|---|---|---|"
    for key, api in all_apis().items():
        yield f"| {key} | {api.name} | {our_versions(api)} | {kafka_versions(api)} | {NOTES.get(key, '')} |"


def differences() -> Iterator[str]:
    """The known differences, script by script."""
    for script, entries in sorted(KNOWN.items()):
        yield f"### {script.replace('_', ' ').capitalize()}"
        yield ""
        seen = []
        for entry in entries:
            field = f", `{entry.path}`" if entry.path not in {"", "*"} else ""
            line = f"- `{entry.step}`{field}: {entry.reason}"
            if line not in seen:
                seen.append(line)
        yield from seen
        yield ""


def summary() -> str:
    """The known differences in short."""
    without = [f"`{name}`" for name, config in sorted(TOPIC_CONFIGS.items()) if "no effect" in config.documentation]
    dynamic = [f"`{name}`" for name in sorted(DYNAMIC) if "no effect" not in BROKER_CONFIGS[name].documentation]
    return fill_items(SUMMARY.format(no_effect=", ".join(without), dynamic=", ".join(dynamic)))


def fill_items(text: str) -> str:
    """Break the lines of a list anew."""
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
    """The whole page."""
    served = len(HANDLERS.keys() - NOT_ADVERTISED.keys())
    total = sum(1 for api in all_apis().values() if api.key not in NOT_ADVERTISED)
    lines = [f"\n{served} of the {total} APIs that Apache Kafka advertises are served.\n", *table()]
    return (
        INTRODUCTION
        + "\n".join(lines)
        + "\n"
        + summary()
        + "\n"
        + DIFFERENCES
        + "\n".join(differences()).rstrip("\n")
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"written: {PAGE}")
