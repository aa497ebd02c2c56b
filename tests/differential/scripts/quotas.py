"""Client quotas: what is set for users, client ids and addresses, and how requests over a quota are answered."""

from collections.abc import Mapping

from anabranch.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.differential.script import Script
from tests.support.raw_client import batch_of

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
Names = Mapping[str, str | None]


def entry(names: Names, *ops: tuple[str, float | None]) -> EntryData:
    """A change of an entity's quotas; None removes one."""
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[OpData(key=key, value=0.0 if value is None else value, remove=value is None) for key, value in ops],
    )


def alter(script: Script, step: str, *entries: EntryData, validate_only: bool = False) -> None:
    """Change quotas, in both versions."""
    script.call(step, AlterClientQuotasRequest(entries=entries, validate_only=validate_only), 0, 1)


def describe(script: Script, step: str, *components: tuple[str, int, str | None], strict: bool = False) -> None:
    """Describe quotas, in both versions."""
    script.call(step, _filter(*components, strict=strict), 0, 1)


def _filter(*components: tuple[str, int, str | None], strict: bool) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=[ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components],
        strict=strict,
    )


def set_quotas(script: Script, names: Names, **quotas: float | None) -> None:
    """Change quotas, and wait until the broker has them, without noting the answers."""
    kept = {key: value for key, value in quotas.items() if value is not None}
    script.ask(AlterClientQuotasRequest(entries=[entry(names, *quotas.items())]), 1)
    components = [(kind, DEFAULT if name is None else EXACT, name) for kind, name in names.items()]
    script.until(
        _filter(*components, strict=True),
        1,
        lambda answer: {each.key: each.value for found in answer.entries for each in found.values} == kept,
    )


def quotas_of_users_and_clients(script: Script) -> None:
    alice: Names = {"user": "q-alice"}
    alter(script, "validate only", entry(alice, ("producer_byte_rate", 1024)), validate_only=True)
    alter(script, "nothing")
    alter(script, "an entity without changes", entry(alice))
    alter(script, "no entity", entry({}, ("producer_byte_rate", 1024)))
    alter(script, "a type there is not", entry({"no-such": "x"}, ("producer_byte_rate", 1024)))
    alter(script, "an empty user", entry({"user": ""}, ("producer_byte_rate", 1024)))
    alter(script, "an empty client id", entry({"client-id": ""}, ("producer_byte_rate", 1024)))
    alter(script, "an empty address", entry({"ip": ""}, ("connection_creation_rate", 10)))
    for value in (0.0, -1.0, 0.5, 1.0000001, 1e19, float("inf"), float("-inf"), float("nan")):
        alter(script, f"bytes: {value}", entry(alice, ("consumer_byte_rate", value)), validate_only=True)
        alter(script, f"percentage: {value}", entry(alice, ("request_percentage", value)), validate_only=True)
    alter(script, "an unknown key", entry(alice, ("no_such_rate", 5)))
    alter(script, "an unknown key removed", entry(alice, ("no_such_rate", None)))
    alter(script, "a key of addresses", entry(alice, ("connection_creation_rate", 5)))
    alter(script, "a key twice", entry(alice, ("producer_byte_rate", 5), ("producer_byte_rate", 6)))
    alter(
        script,
        "an entity twice",
        entry(alice, ("request_percentage", 5)),
        entry(alice, ("request_percentage", 6)),
        validate_only=True,
    )
    both: Names = {"user": "q-alice", "client-id": None}
    alter(
        script,
        "a combination twice",
        entry(both, ("request_percentage", 5)),
        entry(both, ("request_percentage", 6)),
        validate_only=True,
    )
    alter(
        script,
        "many",
        entry(alice, ("producer_byte_rate", 1e12), ("consumer_byte_rate", 2e12), ("request_percentage", 1e6 + 0.5)),
        entry({"user": "q-bob"}, ("controller_mutation_rate", 1e6)),
        entry({"user": "q-alice", "client-id": "q-c"}, ("producer_byte_rate", 3e12)),
        entry(both, ("producer_byte_rate", 4e12)),
        entry({"client-id": "q-c \u00e4/"}, ("producer_byte_rate", 5e12)),
        entry({"user": None, "client-id": "q-c"}, ("producer_byte_rate", 6e12)),
        entry({"user": None}, ("producer_byte_rate", 7e12)),
        entry({"client-id": None}, ("producer_byte_rate", 8e12)),
        entry({"no-such": None}, ("producer_byte_rate", 9e12)),
    )
    script.until(_filter(strict=False), 1, lambda answer: len(answer.entries) == 8)
    describe(script, "all")
    describe(script, "none", strict=True)
    describe(script, "a user, with all combinations", ("user", EXACT, "q-alice"))
    describe(script, "a user alone", ("user", EXACT, "q-alice"), strict=True)
    describe(script, "a default", ("user", DEFAULT, None))
    describe(script, "a default alone", ("user", DEFAULT, None), strict=True)
    describe(script, "any user", ("user", SPECIFIED, None))
    describe(script, "any client id, alone", ("client-id", SPECIFIED, None), strict=True)
    describe(script, "any of both", ("client-id", SPECIFIED, None), ("user", SPECIFIED, None), strict=True)
    describe(script, "a user and a default", ("client-id", DEFAULT, None), ("user", EXACT, "q-alice"), strict=True)
    describe(script, "a user there is not", ("user", EXACT, "q-nobody"))
    describe(script, "an empty name", ("user", EXACT, ""))
    describe(script, "a filter without type", ("", EXACT, "x"))
    describe(script, "a type there is not", ("no-such", EXACT, "x"))
    describe(script, "a type twice", ("user", EXACT, "x"), ("user", DEFAULT, None))
    describe(script, "exact without a name", ("user", EXACT, None))
    describe(script, "a default with a name", ("user", DEFAULT, "x"))
    describe(script, "any with a name", ("user", SPECIFIED, "x"))
    describe(script, "an unknown match", ("user", 3, None))
    describe(script, "a user and an address", ("user", EXACT, "x"), ("ip", EXACT, "10.0.0.1"))
    alter(script, "remove what there is not", entry(alice, ("controller_mutation_rate", None)))
    alter(
        script,
        "remove and set",
        entry(alice, ("producer_byte_rate", None), ("consumer_byte_rate", None), ("request_percentage", 2e6)),
    )
    script.until(_filter(("user", EXACT, "q-alice"), strict=True), 1, lambda answer: len(answer.entries[0].values) == 1)
    describe(script, "what is left", ("user", EXACT, "q-alice"), strict=True)
    for names in (
        alice,
        {"user": "q-bob"},
        {"user": "q-alice", "client-id": "q-c"},
        both,
        {"client-id": "q-c \u00e4/"},
        {"user": None, "client-id": "q-c"},
        {"user": None},
        {"client-id": None},
    ):
        set_quotas(script, names, producer_byte_rate=None, request_percentage=None, controller_mutation_rate=None)
    describe(script, "nothing left")


def quotas_of_addresses(script: Script) -> None:
    address: Names = {"ip": "10.99.0.1"}
    rate = "connection_creation_rate"
    alter(script, "validate only", entry(address, (rate, 1000)), validate_only=True)
    alter(script, "with a user", entry({"ip": "10.99.0.1", "user": "q-alice"}, (rate, 1000)))
    alter(script, "with a client id", entry({"ip": None, "client-id": None}, (rate, 1000)))
    alter(script, "a key of users", entry(address, ("producer_byte_rate", 1000)))
    alter(script, "no address", entry({"ip": "no such.host"}, (rate, 1000)))
    alter(script, "a fraction", entry(address, (rate, 1.5)))
    alter(script, "too large", entry(address, (rate, 3e9)))
    alter(script, "zero", entry(address, (rate, 0)))
    alter(script, "set", entry(address, (rate, 1000)), entry({"ip": None}, (rate, 2e9)))
    alter(script, "an address of version 6", entry({"ip": "2001:db8::1"}, (rate, 1000)))
    alter(script, "a host", entry({"ip": "localhost"}, (rate, 1_000_000)))
    script.until(_filter(("ip", SPECIFIED, None), strict=True), 1, lambda answer: len(answer.entries) == 4)
    describe(script, "all", ("ip", SPECIFIED, None))
    describe(script, "one", ("ip", EXACT, "10.99.0.1"), strict=True)
    describe(script, "in another notation", ("ip", EXACT, "2001:db8:0:0:0:0:0:1"), strict=True)
    describe(script, "the default", ("ip", DEFAULT, None))
    for name in ("10.99.0.1", None, "2001:db8::1", "localhost"):
        set_quotas(script, {"ip": name}, connection_creation_rate=None)
    describe(script, "nothing left")


EVERYBODY: Names = {"user": "ANONYMOUS"}


def throttled_bytes(script: Script) -> None:
    """Over a quota of bytes, Produce is accepted and Fetch gets nothing. Each connection is muted afterwards."""
    script.topic("q-bytes")
    partition = [PartitionProduceData(index=0, records=bytes(batch_of(b"x" * 6000)))]
    produce = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name="q-bytes", partition_data=partition)]
    )
    script.ask(produce, 9)
    set_quotas(script, EVERYBODY, producer_byte_rate=1000, consumer_byte_rate=1000)
    for version, at in ((9, 1), (9, 2), (3, 3), (12, 4)):
        script.call(f"produce {at}", produce, version, on=f"producer {at}")
    first = script.call("fetch", _fetch(0), 11, on="consumer")
    script.call("more than the quota", _fetch(1, first.session_id), 11, on="consumer")
    script.call("more, in a session, elsewhere", _fetch(2, first.session_id), 11, on="consumer 2")
    script.call("more, with a new session", _fetch(0), 11, on="consumer 3")
    script.call("more, without a session", _fetch(-1), 4, on="consumer 4")
    set_quotas(script, EVERYBODY, producer_byte_rate=None, consumer_byte_rate=None)
    script.call("the session, without a quota", _fetch(3, first.session_id), 11, on="consumer 5")
    script.call("produce without a quota", produce, 9, on="producer 5")


def _fetch(epoch: int, session_id: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=7000)
    topics = [FetchTopic(topic="q-bytes", partitions=[partition])] if epoch <= 0 else []
    return FetchRequest(max_wait_ms=0, max_bytes=7000, session_id=session_id, session_epoch=epoch, topics=topics)


def throttled_time(script: Script) -> None:
    """Over a quota of time, answers to all requests have a throttle time, of a second at most."""
    set_quotas(script, EVERYBODY, request_percentage=0.0001)
    script.until(DescribeClientQuotasRequest(), 1, lambda answer: answer.throttle_time_ms > 0, on="first")
    describe(script, "describe")
    script.call("groups", ListGroupsRequest(), 4, on="throttled", own="q-no-group")
    set_quotas(script, EVERYBODY, request_percentage=None)


def throttled_changes(script: Script) -> None:
    """Over a quota of changes, newer versions of requests are refused, and older ones accepted and throttled."""
    script.topic("q-changes")
    set_quotas(script, EVERYBODY, controller_mutation_rate=0.01)
    for name, partitions, version in (("q-ch-a", 3, 7), ("q-ch-b", 1, 7), ("q-ch-c", 1, 6), ("q-ch-d", 1, 5)):
        script.call(f"create {name}", _create(name, partitions), version, on=name)
    script.call("validate only", _create("q-ch-e", 1, validate_only=True), 7, on="validate")
    script.call("create what there is", _create("q-changes", 1), 7, on="exists")
    for version in (3, 2):
        grow = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="q-changes", count=2, assignments=None)], timeout_ms=30_000
        )
        script.call("grow", grow, version, on=f"grow {version}")
    for version in (6, 5, 4):
        names = ["q-ch-a"]
        states = [DeleteTopicState(name=name) for name in names]
        delete = DeleteTopicsRequest(
            topics=states if version == 6 else (), topic_names=() if version == 6 else names, timeout_ms=30_000
        )
        script.call("delete", delete, version, on=f"delete {version}")
    script.call("delete what there is not", _delete("q-no-such"), 6, on="unknown")
    set_quotas(script, EVERYBODY, controller_mutation_rate=None)
    script.call("delete without a quota", _delete("q-changes"), 6)
    script.gone("q-changes", "q-ch-a")


def _create(name: str, partitions: int, *, validate_only: bool = False) -> CreateTopicsRequest:
    wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=validate_only)


def _delete(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)


SCRIPTS = (quotas_of_users_and_clients, quotas_of_addresses, throttled_bytes, throttled_time, throttled_changes)
