"""Names that clients choose cannot forge lines or fields of the log, or write to a terminal."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from anabranch.broker.kafka.sasl.plain import hash_password
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.logging.logs import configure
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.settings.model import LogSettings
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.kafka.sasl.clients import LISTENERS, handshake, log_in_plain
from tests.support.node import running_node
from tests.support.raw_client import raw_client
from tests.support.waiting import until

FORGED = '{"event": "changed", "principal": "User:admin", "level": "info"}'
NAMES = (
    f"eve\n{FORGED}\n",
    f"eve\r\n{FORGED}",
    f"eve\u2028{FORGED}",
    f'eve", "principal": "User:admin", "x": "{FORGED}',
    "eve principal=User:admin",
    "\x1b[2J\x1b]0;title\x07eve",
    "\x9b31m\u202eeve\0",
    "eve\\",
)
NOT_PRINTABLE = re.compile("[\0-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u2028\u2029\u202e]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The node's own, in its format for terminals."""


@pytest.fixture(params=["json", "pretty"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path, LineWriter]]:
    """The format of a log, its file, and what writes it."""
    path = tmp_path / "log"
    before = structlog.get_config()
    with path.open("wb") as file:
        writer = LineWriter(file.fileno())
        configure(LogSettings.of({"format": request.param, "level": "debug"}), LogLevels(), writer)
        yield request.param, path, writer
        assert writer.flush(10)
    structlog.configure(**before)


async def test_names_of_clients_forge_nothing_in_the_log(written: tuple[str, Path, LineWriter], tmp_path: Path) -> None:
    kind, path, writer = written
    users = tmp_path / "users"
    users.write_text(f"alice:{hash_password('secret-of-alice', b's' * 16).to_text()}")
    settings = {
        "listeners": LISTENERS,
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl_plain_users_file": users,
        "sasl_failed_authentication_delay_ms": 0,
        "authorizer_enabled": True,
        "log_level": "debug",
    }
    async with running_node(tmp_path, **settings) as node:
        for name in NAMES:
            async with raw_client(f"127.0.0.1:{node.ports.clients.ports['SASL_PLAINTEXT']}", client_id=name) as client:
                assert (await handshake(client, name)).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            async with raw_client(f"127.0.0.1:{node.ports.clients.ports['SASL_PLAINTEXT']}", client_id=name) as client:
                assert (await log_in_plain(client, name.replace("\0", ""), "wrong")).error_code
            async with raw_client(f"127.0.0.1:{node.ports.clients.ports['SASL_PLAINTEXT']}", client_id=name) as client:
                await log_in_plain(client)
                topics = [MetadataRequestTopic(name=name)]
                await client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 9)
        await until(lambda: node.ports.clients.stats.failed_authentications == 2 * len(NAMES))
    assert writer.flush(10)
    lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    text = COLOURS.sub("", "\n".join(lines))
    assert not NOT_PRINTABLE.search(text.replace("\n", "")), text
    assert text.count("eve") >= 2 * len(NAMES), text
    if kind == "json":
        events = [json.loads(line) for line in lines]
        assert {each.get("user", "") for each in events} == {"", *(name.replace("\0", "") for name in NAMES)}
        failed = [each for each in events if each["event"] == "authentication failed"]
        assert len(failed) == 2 * len(NAMES)
        assert not [each for each in events if "User:admin" in (each.get("principal"), each.get("x"))]
    else:
        stamped = re.compile(r"\d\d:\d\d:\d\d \[")
        plain = text.split("\n")
        assert all(stamped.match(line) for line in plain), plain
        assert "user='eve principal=User:admin'" in text
