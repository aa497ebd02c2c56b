"""The registry over a log in memory: requests and answers, crashes, and what others write."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import pytest

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.schemas import registry
from anabranch.broker.kafka.schemas.compatibility import Parsed
from anabranch.broker.kafka.schemas.model import Level, RegistryError, Resolved
from anabranch.broker.kafka.schemas.parser import SchemaParser
from anabranch.broker.kafka.schemas.records import VersionRecord, decode
from anabranch.broker.kafka.schemas.registry import SchemaRegistry
from anabranch.broker.kafka.schemas.requests import RegistryRequest
from anabranch.broker.kafka.schemas.routes import ROUTES
from anabranch.s3stream.errors import StorageStopped
from anabranch.wal.interface import Durable, WalError
from tests.support.waiting import until


class ListLog:
    """A log in memory. With `hold`, appends become durable at `release`."""

    def __init__(self, records: Sequence[KeyValue] = ()) -> None:
        self.records = list(records)
        self.confirmed = len(self.records)
        self.hold = False
        self.refusal: Exception | None = None
        self.pending: list[Durable] = []

    @property
    def next_offset(self) -> int:
        return len(self.records)

    def write(self, records: Sequence[KeyValue]) -> Durable:
        if self.refusal is not None:
            raise self.refusal
        self.records += records
        durable = Durable()
        self.pending.append(durable)
        if not self.hold:
            self.release()
        return durable

    def release(self, error: WalError | None = None) -> None:
        if error is None:
            self.confirmed = len(self.records)
        pending, self.pending = self.pending, []
        for each in pending:
            each.complete(error)

    async def read(self, offset: int) -> AsyncIterator[tuple[int, Sequence[KeyValue]]]:
        for each in list(self.pending):
            await each
        for at in range(offset, self.confirmed):
            yield at + 1, [self.records[at]]


class OneTopic:
    """A topic that this node leads."""

    def __init__(self, log: ListLog | None = None) -> None:
        self.led = log
        self.away: RegistryError | None = None

    def log(self) -> ListLog | None:
        if self.away is not None:
            raise self.away
        return self.led

    async def create(self) -> None:
        self.led = self.led or ListLog()


class Client:
    """Sends requests to a registry."""

    def __init__(self, topic: OneTopic, parser: SchemaParser | None = None) -> None:
        self.topic = topic
        self.registry = SchemaRegistry(topic, parser or SchemaParser(None), Level.BACKWARD)

    async def send(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        sent = b"" if body is None else json.dumps(body).encode()
        answer = await self.registry.answer(RegistryRequest(method, target, sent))
        return answer.status, json.loads(answer.body)

    async def ok(self, method: str, target: str, body: Any = None) -> Any:
        status, answer = await self.send(method, target, body)
        assert status == 200, answer
        return answer

    async def code(self, method: str, target: str, body: Any = None) -> int:
        status, answer = await self.send(method, target, body)
        assert sorted(answer) == ["error_code", "message"]
        assert str(answer["error_code"])[:3] == str(status)
        assert "\n" not in answer["message"]
        found: int = answer["error_code"]
        return found


@pytest.fixture
def client() -> Client:
    return Client(OneTopic())


def schema(source: Any, **more: Any) -> dict[str, Any]:
    return {"schema": json.dumps(source), **more}


def record(*names: str, default: Any = None) -> dict[str, Any]:
    fields = [{"name": name, "type": "string", **({} if default is None else {"default": default})} for name in names]
    return {"type": "record", "name": "R", "fields": fields}


ONE: Final = schema(record("a"))
TWO: Final = schema({**record("a"), "fields": [*record("a")["fields"], *record("b", default="")["fields"]]})
BAD: Final = schema(record("a", "b"))


async def test_a_schema_is_registered_found_and_read(client: Client) -> None:
    assert await client.ok("GET", "/subjects") == []
    assert client.topic.led is None, "questions create nothing"
    assert await client.ok("POST", "/subjects/s-value/versions", ONE) == {"id": 1}
    assert await client.ok("POST", "/subjects/s-value/versions", ONE) == {"id": 1}, "the same again"
    assert await client.ok("POST", "/subjects/s-value/versions", TWO) == {"id": 2}
    assert await client.ok("POST", "/subjects/t%2Fu/versions", ONE) == {"id": 1}, "the same under another subject"
    assert await client.ok("GET", "/subjects") == ["s-value", "t/u"]
    assert await client.ok("GET", "/subjects?subjectPrefix=t") == ["t/u"]
    assert await client.ok("GET", "/subjects/s-value/versions") == [1, 2]
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
    described = {"subject": "s-value", "version": 1, "id": 1, "schema": text}
    assert await client.ok("GET", "/subjects/s-value/versions/1") == described
    assert await client.ok("POST", "/subjects/s-value", ONE) == described
    assert (await client.ok("GET", "/subjects/s-value/versions/latest"))["version"] == 2
    assert (await client.ok("GET", "/subjects/s-value/versions/-1"))["version"] == 2
    assert await client.ok("GET", "/subjects/s-value/versions/1/schema") == record("a")
    assert await client.ok("GET", "/schemas/ids/1") == {"schema": text}
    assert await client.ok("GET", "/schemas/ids/1?fetchMaxId=true") == {"schema": text, "maxId": 2}
    assert await client.ok("GET", "/schemas/ids/1/subjects") == ["s-value", "t/u"]
    assert await client.ok("GET", "/schemas/ids/1/versions") == [
        {"subject": "s-value", "version": 1},
        {"subject": "t/u", "version": 1},
    ]
    assert len(await client.ok("GET", "/schemas")) == 3
    assert [each["version"] for each in await client.ok("GET", "/schemas?latestOnly=true")] == [2, 1]
    assert await client.ok("GET", "/schemas/types") == ["JSON", "AVRO"]
    assert await client.ok("GET", "/contexts") == ["."]
    assert await client.ok("GET", "/") == {}


async def test_errors_have_confluents_codes(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    cases = {
        ("GET", "/subjects/x/versions"): 40401,
        ("GET", "/subjects/s/versions/9"): 40402,
        ("GET", "/subjects/s/versions/0"): 42202,
        ("GET", "/subjects/s/versions/first"): 42202,
        ("GET", "/schemas/ids/9"): 40403,
        ("GET", "/config/s"): 40408,
        ("GET", "/mode/s"): 40409,
        ("GET", "/nothing"): 404,
        ("PATCH", "/subjects"): 405,
        ("DELETE", "/subjects/x"): 40401,
        ("DELETE", "/subjects/s?permanent=true"): 40405,
        ("DELETE", "/subjects/s/versions/1?permanent=true"): 40407,
        ("GET", "/subjects/:.c:s/versions"): 42208,
    }
    for (method, target), code in cases.items():
        assert await client.code(method, target) == code, target
    bodies: list[tuple[str, str, Any, int]] = [
        ("POST", "/subjects/s", BAD, 40403),
        ("POST", "/subjects/x", ONE, 40401),
        ("POST", "/subjects/s/versions", BAD, 409),
        ("POST", "/subjects/s/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/s/versions", {}, 42201),
        ("POST", "/subjects/s/versions", [], 422),
        ("POST", "/subjects/s/versions", {**ONE, "schemaType": "XML"}, 42201),
        ("POST", "/subjects/s/versions", {**ONE, "ruleSet": {"domainRules": []}}, 42201),
        ("POST", "/subjects/s/versions", {**ONE, "id": 9}, 42205),
        ("POST", "/subjects/s/versions", {**TWO, "version": 9}, 42202),
        ("POST", "/subjects/s/versions", {"schema": "message M {}", "schemaType": "PROTOBUF"}, 42201),
        (
            "POST",
            "/subjects/s/versions",
            schema("string", references=[{"name": "x", "subject": "x", "version": 1}]),
            42201,
        ),
        ("POST", "/subjects/s/versions", {"schema": '"' + "x" * 600_000 + '"'}, 42209),
        ("PUT", "/config", {"compatibility": "SOME"}, 42203),
        ("PUT", "/mode", {"mode": "SOME"}, 42204),
        ("PUT", "/mode", {"mode": "IMPORT"}, 42205),
    ]
    for method, target, body, code in bodies:
        assert await client.code(method, target, body) == code, (target, body)
    answer = await client.registry.answer(RegistryRequest("POST", "/subjects/s/versions", b"{"))
    assert answer.status == 400


async def test_compatibility_is_checked_by_the_level(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    checks = "/compatibility/subjects/s/versions"
    assert await client.ok("POST", f"{checks}/latest", TWO) == {"is_compatible": True}
    assert await client.ok("POST", checks, BAD) == {"is_compatible": False}
    told = await client.ok("POST", f"{checks}/1?verbose=true", BAD)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in told["messages"][0]
    assert told["messages"][1:] == [
        "{oldSchemaVersion: 1}",
        "{oldSchema: '" + '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}' + "'}",
        "{compatibility: 'BACKWARD'}",
    ]
    assert await client.ok("PUT", "/config/s", {"compatibility": "forward"}) == {"compatibility": "FORWARD"}
    assert await client.ok("GET", "/config/s") == {"compatibilityLevel": "FORWARD"}
    assert await client.ok("POST", "/subjects/s/versions", BAD) == {"id": 2}
    assert await client.ok("DELETE", "/config/s") == {"compatibilityLevel": "FORWARD"}
    assert await client.ok("GET", "/config/s?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
    assert await client.ok("PUT", "/config", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
    assert await client.ok("POST", "/subjects/s/versions", schema("int")) == {"id": 3}


async def test_a_schema_for_a_new_subject_is_compatible(client: Client) -> None:
    checks = "/compatibility/subjects/s/versions"
    for target in (checks, f"{checks}/latest"):
        assert await client.ok("POST", target, ONE) == {"is_compatible": True}
    assert await client.code("POST", f"{checks}/1", ONE) == 40401
    await client.ok("POST", "/subjects/s/versions", ONE)
    assert await client.code("POST", f"{checks}/2", ONE) == 40402


async def test_an_invalid_schema_is_compared_with_reasons_if_asked(client: Client) -> None:
    checks = "/compatibility/subjects/s/versions"
    assert await client.code("POST", checks, {"schema": "{"}) == 42201
    told = await client.ok("POST", f"{checks}?verbose=true", {"schema": "{"})
    assert told["is_compatible"] is False
    assert told["messages"][0].startswith("Invalid schema: ")


async def test_configs_that_are_not_served_are_refused(client: Client) -> None:
    unserved = {
        "normalize": True,
        "alias": "t",
        "compatibilityPolicy": "LENIENT",
        "overrideRuleSet": {"domainRules": []},
    }
    for name, value in [*unserved.items(), ("alias", "STRICT")]:
        assert await client.code("PUT", "/config/s", {"compatibility": "FULL", name: value}) == 422, name
    assert await client.code("GET", "/config/s") == 40408
    said = {"compatibility": "FULL", "normalize": False, "alias": None, "compatibilityPolicy": "STRICT"}
    assert await client.ok("PUT", "/config/s", said) == {"compatibility": "FULL"}


async def test_transitive_levels_look_at_all_versions(client: Client) -> None:
    await client.ok("PUT", "/config/s", {"compatibility": "NONE"})
    for each in ("string", "int", "long"):
        await client.ok("POST", "/subjects/s/versions", schema(each))
    checks = "/compatibility/subjects/s/versions"
    await client.ok("PUT", "/config/s", {"compatibility": "BACKWARD"})
    assert (await client.ok("POST", checks, schema("double")))["is_compatible"]
    await client.ok("PUT", "/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert not (await client.ok("POST", checks, schema("double")))["is_compatible"]
    await client.ok("PUT", "/config/s", {"compatibility": "FULL"})
    assert not (await client.ok("POST", checks, schema("double")))["is_compatible"], "long does not read double"


async def test_another_format_is_not_compatible(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    assert await client.code("POST", "/subjects/s/versions", schema({}, schemaType="JSON")) == 409


async def test_deletion_is_soft_and_then_for_good(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    await client.ok("POST", "/subjects/s/versions", TWO)
    await client.ok("PUT", "/config/s", {"compatibility": "FULL"})
    assert await client.ok("DELETE", "/subjects/s/versions/1") == 1
    assert await client.code("DELETE", "/subjects/s/versions/1") == 40406
    assert await client.ok("GET", "/subjects/s/versions") == [2]
    assert await client.ok("GET", "/subjects/s/versions?deleted=true") == [1, 2]
    assert await client.ok("GET", "/subjects/s/versions?deletedOnly=true") == [1]
    assert (await client.ok("GET", "/schemas/ids/1"))["schema"], "data may have been written with it"
    assert await client.ok("DELETE", "/subjects/s/versions/1?permanent=true") == 1
    assert await client.code("GET", "/schemas/ids/1") == 40403
    assert await client.ok("DELETE", "/subjects/s") == [2]
    assert await client.code("DELETE", "/subjects/s") == 40404
    assert await client.code("GET", "/config/s") == 40408, "its settings are gone, too"
    assert await client.ok("GET", "/subjects?deleted=true") == ["s"]
    assert await client.ok("POST", "/subjects/s/versions", TWO) == {"id": 2}, "the id that it had"
    assert await client.ok("GET", "/subjects/s/versions") == [3]
    assert await client.ok("DELETE", "/subjects/s/versions/latest") == 3
    assert await client.ok("DELETE", "/subjects/s?permanent=true") == [2, 3]
    assert await client.ok("GET", "/subjects?deleted=true") == []
    assert await client.ok("POST", "/subjects/s/versions", TWO) == {"id": 3}, "ids are given once"


async def test_what_is_referred_to_stays(client: Client) -> None:
    await client.ok("POST", "/subjects/base/versions", schema(record("a")))
    reference = [{"name": "R", "subject": "base", "version": -1}]
    user = schema({"type": "record", "name": "U", "fields": [{"name": "r", "type": "R"}]}, references=reference)
    assert await client.ok("POST", "/subjects/user/versions", user) == {"id": 2}
    assert (await client.ok("GET", "/schemas/ids/2"))["references"] == [{"name": "R", "subject": "base", "version": 1}]
    assert await client.ok("GET", "/subjects/base/versions/1/referencedby") == [2]
    assert await client.code("DELETE", "/subjects/base") == 42206
    assert await client.code("DELETE", "/subjects/base/versions/1") == 42206
    await client.ok("DELETE", "/subjects/user")
    assert await client.ok("DELETE", "/subjects/base") == [1]


async def test_what_a_soft_deleted_version_refers_to_is_not_deleted_for_good(client: Client) -> None:
    await client.ok("POST", "/subjects/base/versions", schema(record("a")))
    reference = [{"name": "R", "subject": "base", "version": 1}]
    user = schema({"type": "array", "items": "R"}, references=reference)
    await client.ok("POST", "/subjects/user/versions", user)
    await client.ok("DELETE", "/subjects/user")
    await client.ok("DELETE", "/subjects/base")
    for target in ("/subjects/base", "/subjects/base/versions/1"):
        assert await client.code("DELETE", f"{target}?permanent=true") == 42206, "its id would get another meaning"
    await client.ok("DELETE", "/subjects/user?permanent=true")
    assert await client.ok("DELETE", "/subjects/base?permanent=true") == [1]


async def test_an_import_replaces_no_version(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    await client.ok("PUT", "/mode/s?force=true", {"mode": "IMPORT"})
    assert await client.code("POST", "/subjects/s/versions", {**BAD, "id": 7, "version": 1}) == 42205
    for _ in range(2):
        assert await client.ok("POST", "/subjects/s/versions", {**BAD, "id": 7, "version": 2}) == {"id": 7}
    assert json.loads((await client.ok("GET", "/schemas/ids/1"))["schema"]) == record("a")
    assert await client.ok("GET", "/subjects/s/versions") == [1, 2]


async def test_modes(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    assert await client.ok("PUT", "/mode/s", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert await client.code("POST", "/subjects/s/versions", TWO) == 42205
    assert await client.code("DELETE", "/subjects/s") == 42205
    assert await client.code("PUT", "/config/s", {"compatibility": "NONE"}) == 42205
    assert await client.ok("POST", "/subjects/s", ONE), "it is still read"
    assert await client.ok("DELETE", "/mode/s") == {"mode": "READONLY"}
    assert await client.ok("GET", "/mode") == {"mode": "READWRITE"}
    await client.ok("PUT", "/mode/copy", {"mode": "IMPORT"})
    assert await client.ok("POST", "/subjects/copy/versions", {**BAD, "id": 70, "version": 7}) == {"id": 70}
    assert await client.code("POST", "/subjects/copy/versions", {**TWO, "id": 70}) == 42205
    assert await client.code("POST", "/subjects/copy/versions", TWO) == 42205
    assert await client.ok("GET", "/subjects/copy/versions") == [7]
    assert await client.ok("POST", "/subjects/s/versions", TWO) == {"id": 71}


async def test_the_normal_form_is_looked_up_and_stored(client: Client) -> None:
    one, other = ({"type": "int", **more} for more in ({"b": 1, "a": 2}, {"a": 2, "b": 1}))
    await client.ok("POST", "/subjects/s/versions?normalize=true", schema(one))
    assert (await client.ok("POST", "/subjects/s?normalize=true", schema(other)))["version"] == 1
    assert await client.code("POST", "/subjects/s?normalize=False", schema(one)) == 40403


async def test_a_request_that_is_too_much_is_refused(client: Client) -> None:
    references = [{"name": f"r{n}", "subject": "s", "version": -1} for n in range(201)]
    assert await client.code("POST", "/subjects/s", schema("int", references=references)) == 40401
    await client.ok("POST", "/subjects/s/versions", ONE)
    assert await client.code("POST", "/subjects/s", schema("int", references=references)) == 42201
    deep = "[" * 700 + "]" * 700  # too deep for the normal form, or not: that depends on the version of Python
    body = {"schema": f'{{"type": "int", "deep": {deep}}}'}
    assert await client.code("POST", "/subjects/s?normalize=true", body) in {40403, 42201}


async def test_a_list_of_many_schemas_has_pages(client: Client) -> None:
    for subject in ("a", "b", "c"):
        await client.ok("POST", f"/subjects/{subject}/versions", schema({"type": "int", "doc": subject * 400_000}))
    assert await client.code("GET", "/schemas") == 413
    assert [each["subject"] for each in await client.ok("GET", "/schemas?offset=1&limit=2")] == ["b", "c"]


async def test_damaged_records_of_others_are_left_out(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    assert client.topic.led is not None
    key = b'{"keytype":"SCHEMA","subject":"x","version":1,"magic":1}'
    fields = ('"id":9,"schema":null', '"id":1e999,"schema":"1"', '"id":9999999999,"schema":"1"', '"id":0,"schema":"1"')
    await client.topic.led.write([KeyValue(key, f'{{"subject":"x","version":1,{each}}}'.encode()) for each in fields])
    await client.topic.led.write([KeyValue(b'{"keytype":"NOOP","magic":0}', b'{"maxId":1e999}')])
    assert await client.ok("GET", "/subjects") == ["s"]
    assert await client.ok("POST", "/subjects/s/versions", TWO) == {"id": 2}


async def test_a_state_that_nobody_has_asked_for_is_read_anew(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    log = client.topic.led
    assert log is not None
    log.records[0] = KeyValue(b'{"keytype":"NOOP","magic":0}', None)  # deleted by others, and compacted
    assert await client.ok("GET", "/subjects") == ["s"]
    monkeypatch.setattr(registry, "CURRENT_S", -1.0)
    assert await client.ok("GET", "/subjects") == []


async def test_a_large_log_leaves_turns_to_others() -> None:
    value = b'{"subject":"s","version":1,"id":1,"schema":"1"}'
    record_of_log = KeyValue(b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', value)
    client = Client(OneTopic(ListLog([record_of_log] * 100)))
    loop = asyncio.get_running_loop()
    reading = loop.create_task(client.ok("GET", "/subjects"))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100


async def test_another_node_continues_from_the_log(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    await client.ok("DELETE", "/subjects/s")
    await client.ok("DELETE", "/subjects/s?permanent=true")
    assert client.topic.led is not None
    newest = {each.key: each for each in client.topic.led.records}  # as compaction leaves them
    left = [each for each in newest.values() if each.value is not None]
    other = Client(OneTopic(ListLog(left)))
    assert await other.ok("POST", "/subjects/s/versions", TWO) == {"id": 2}


async def test_what_is_not_durable_is_not_answered_and_not_seen(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    log = client.topic.led
    assert log is not None
    log.hold = True
    change = asyncio.get_running_loop().create_task(client.ok("POST", "/subjects/s/versions", TWO))
    await until(lambda: bool(log.pending), pause_s=0)
    question = asyncio.get_running_loop().create_task(client.ok("GET", "/subjects/s/versions"))
    await asyncio.sleep(0)
    assert not change.done()
    log.release()
    assert await change == {"id": 2}
    assert await question == [1, 2]


async def test_a_log_that_fails_is_an_error(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    assert client.topic.led is not None
    client.topic.led.refusal = StorageStopped("fenced")
    assert await client.code("POST", "/subjects/s/versions", TWO) == 50001
    client.topic.away = RegistryError(50004, "not here")
    assert await client.code("GET", "/subjects") == 50004


async def test_changes_at_the_same_time_come_one_after_the_other(client: Client) -> None:
    bodies = [schema({"type": "fixed", "name": f"F{n}", "size": n}) for n in range(20)]
    answers = await asyncio.gather(
        *(client.ok("POST", f"/subjects/s{n % 10}-{n}/versions", body) for n, body in enumerate(bodies))
    )
    assert sorted(each["id"] for each in answers) == list(range(1, 21))


async def test_what_others_write_is_seen_and_not_overwritten(client: Client) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    other = Client(OneTopic(client.topic.led))
    assert await other.ok("POST", "/subjects/s/versions", TWO) == {"id": 2}
    assert await client.ok("GET", "/subjects/s/versions") == [1, 2]
    assert await client.ok("POST", "/subjects/t/versions", schema("int")) == {"id": 3}
    assert client.topic.led is not None
    versions = [each for each in map(decode, client.topic.led.records) if isinstance(each, VersionRecord)]
    assert [each.value.id for each in versions if each.value is not None] == [1, 2, 3]


async def test_a_decision_that_others_outdate_is_made_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.ok("POST", "/subjects/s/versions", ONE)
    other, parse = Client(OneTopic(client.topic.led)), SchemaParser.parse
    written: list[bool] = []

    async def interrupted(self: SchemaParser, resolved: Resolved) -> Parsed:
        if not written:
            written.append(True)
            assert await other.ok("POST", "/subjects/t/versions", schema("int")) == {"id": 2}
        return await parse(self, resolved)

    monkeypatch.setattr(SchemaParser, "parse", interrupted)
    assert await client.ok("POST", "/subjects/u/versions", schema("long")) == {"id": 3}


def test_a_path_has_one_route_for_a_method() -> None:
    pairs = [(route.method, route.path) for route in ROUTES]
    assert len(set(pairs)) == len(pairs)
    assert all((route.query is None) != (route.change is None) for route in ROUTES)
