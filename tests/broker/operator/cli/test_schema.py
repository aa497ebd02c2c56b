"""`anabranch schema` on a real node."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli import main
from anabranch.broker.operator.cli.admin_port import AdminPort
from anabranch.testing import Broker

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
WIDER = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"},'
    ' {"name": "note", "type": "string", "default": ""}]}'
)


@pytest.fixture(scope="module")
def admin() -> Iterator[str]:
    with Broker() as broker:
        yield urlsplit(broker.schema_registry_url).netloc


@pytest.fixture(scope="module")
def bare() -> Iterator[str]:
    with Broker({"schema_registry.enabled": False}) as broker:
        yield urlsplit(broker.schema_registry_url).netloc


def run(admin: str, *arguments: str | Path, typed: str | None = None) -> Result:
    words = ["schema", *map(str, arguments), "--admin", admin]
    return CliRunner().invoke(main, words, input=typed, env={"COLUMNS": "200"})


def ok(admin: str, *arguments: str | Path, typed: str | None = None) -> str:
    done = run(admin, *arguments, typed=typed)
    assert done.exit_code == 0, done.output
    return done.stdout


def read(admin: str, *arguments: str | Path) -> Any:
    return json.loads(ok(admin, *arguments, "-o", "json"))


@pytest.fixture
def order(tmp_path: Path) -> Path:
    file = tmp_path / "order.avsc"
    file.write_text(ORDER)
    return file


def test_a_schema_is_registered_shown_and_listed(admin: str, order: Path) -> None:
    assert ok(admin, "register", "a/b", order).endswith("a/b: version 1, id 1\n")
    assert ok(admin, "register", "a/b", "-", "--format", "avro", typed=WIDER) == "a/b: version 2, id 2\n"
    assert read(admin, "register", "a/b", order) == {"subject": "a/b", "version": 1, "id": 1}, "it is one already"
    assert json.loads(ok(admin, "show", "a/b")) == json.loads(WIDER)
    assert json.loads(ok(admin, "show", "a/b", "--version", "1")) == json.loads(ORDER)
    by_id = read(admin, "show", "--id", "2")
    assert (by_id["id"], by_id["format"]) == (2, "AVRO")
    assert json.loads(by_id["schema"]) == json.loads(WIDER)
    assert read(admin, "list", "a/*") == [
        {"subject": "a/b", "version": 2, "id": 2, "format": "AVRO", "versions": [1, 2]}
    ]
    heads, row = ok(admin, "list", "a/*").splitlines()
    assert heads.split() == ["subject", "versions", "newest", "id", "format"]
    assert row.split() == ["a/b", "2", "2", "2", "AVRO"]
    assert ok(admin, "list", "none*") == "there are no schemas\n"


def test_a_schema_refers_to_another(admin: str, order: Path, tmp_path: Path) -> None:
    assert read(admin, "register", "orders", order)["version"] == 1
    cart = tmp_path / "cart.avsc"
    cart.write_text('{"type": "record", "name": "Cart", "fields": [{"name": "first", "type": "Order"}]}')
    assert "Order" in run(admin, "register", "carts", cart).output, "it is not known without the reference"
    ok(admin, "register", "carts", cart, "--reference", "Order=orders:1")
    assert read(admin, "show", "carts")["references"] == [{"name": "Order", "subject": "orders", "version": 1}]


def test_a_schema_is_checked_by_the_level_of_its_subject(admin: str, order: Path) -> None:
    ok(admin, "register", "checked", order)
    assert ok(admin, "check", "checked", "-", "--format", "avro", typed=WIDER) == "compatible\n"
    failed = run(admin, "check", "checked", "-", "--format", "avro", typed='"string"')
    assert failed.exit_code == 1
    assert failed.stdout.splitlines()[0] == "not compatible"
    assert len(failed.stdout.splitlines()) > 1, "with the reasons"
    assert ok(admin, "level", "checked") == "checked: BACKWARD (the registry's)\n"
    assert ok(admin, "level", "checked", "--set", "none") == "checked: NONE\n"
    assert ok(admin, "check", "checked", "-", "--format", "avro", typed='"string"') == "compatible\n"
    assert read(admin, "level", "checked", "--unset") == {"subject": "checked", "level": "BACKWARD", "is_own": False}
    assert ok(admin, "level") == "registry: BACKWARD\n"


def test_what_is_deleted_for_good_is_asked_about(admin: str, order: Path) -> None:
    ok(admin, "register", "gone", order)
    ok(admin, "register", "gone", "-", "--format", "avro", typed=WIDER)
    assert ok(admin, "delete", "gone", "--version", "1") == "gone: deleted 1\n"
    assert ok(admin, "delete", "gone") == "gone: deleted 2\n"
    assert "not found" in run(admin, "show", "gone").output
    assert [each["subject"] for each in read(admin, "list", "gone", "--deleted")] == ["gone"]
    refused = run(admin, "delete", "gone", "--permanent", typed="n\n")
    assert (refused.exit_code, "nothing was changed" in refused.output) == (1, True)
    assert ok(admin, "delete", "gone", "--permanent", "-y") == "gone: deleted 1, 2 for good\n"
    assert read(admin, "list", "gone", "--deleted") == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show",), 2, "name a SUBJECT, or a schema with --id"),
        (("show", "missing"), 1, "Subject 'missing' not found"),
        (("register", "s", "order.txt"), 2, "order.txt: the format is not told by the name: give --format"),
        (("register", "s", "missing.avsc"), 1, "missing.avsc: No such file or directory"),
        (
            ("register", "s", "-", "--format", "avro", "--reference", "a=b"),
            2,
            "expected NAME=SUBJECT:VERSION, found a=b",
        ),
        (("level", "s", "--set", "NONE", "--unset"), 2, "--set and --unset exclude each other"),
    ],
)
def test_what_is_wrong_is_one_line(admin: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run(admin, *arguments)
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_a_node_without_a_registry_says_so(bare: str) -> None:
    assert "has no schema registry: see schema_registry.enabled" in run(bare, "list").output


def test_a_list_takes_few_requests(admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        ok(admin, "register", f"few-{number}", "-", "--format", "avro", typed='"string"')
    asked: list[str] = []
    ask = AdminPort.ask_registry

    def counted(node: AdminPort, method: str, path: str) -> Any:
        asked.append(path)
        return ask(node, method, path)

    monkeypatch.setattr(AdminPort, "ask_registry", counted)
    assert [each["subject"] for each in read(admin, "list", "few-*")] == [f"few-{number}" for number in range(5)]
    assert len(asked) == 1
    monkeypatch.setattr("anabranch.broker.operator.cli.schema.PAGE", 2)
    assert len(read(admin, "list", "few-*")) == 5, "over several pages"


def test_a_list_of_large_schemas_is_asked_for_in_parts(admin: str, tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    for number in range(3):  # three in one answer are too many for the registry
        file.write_text(json.dumps({"description": str(number) * 400_000}))
        ok(admin, "register", f"large-{number}", file)
    assert [each["subject"] for each in read(admin, "list", "large-*")] == [f"large-{number}" for number in range(3)]
