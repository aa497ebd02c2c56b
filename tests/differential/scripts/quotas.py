"""Client quotas: what is set for users, client ids and addresses, and how requests over a quota are answered."""

from collections.abc import Mapping

from protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tests.differential.script import Script

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
    for value in (0.0, -1.0, 0.5, 1.0000001, 1e19, float("inf"), float("nan")):
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


SCRIPTS = (quotas_of_users_and_clients, quotas_of_addresses)
