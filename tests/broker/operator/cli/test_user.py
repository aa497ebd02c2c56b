"""`anabranch user`: users of clusters and catalogs, and passwords that are never on a command line or in the output."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.kafka.sasl.plain import read_users
from anabranch.broker.operator.cli.user import PASSWORD_ENV, user
from anabranch.protocol.errors import ErrorCode
from tests.broker.kafka.sasl.clients import LISTENERS, PASSWORD, log_in
from tests.support.node import NodeProcess
from tests.support.raw_client import raw_client
from tests.support.waiting import wait_until


def run(*arguments: Any, typed: str | None = None, **environment: str) -> Result:
    done = CliRunner().invoke(
        user, [str(each) for each in arguments], input=typed, env={"COLUMNS": "200", **environment}
    )
    assert PASSWORD not in done.output
    return done


def ok(*arguments: Any, **options: Any) -> str:
    done = run(*arguments, **options)
    assert done.exit_code == 0, done.output
    return done.output


def log_in_to(process: NodeProcess, mechanism: str) -> int:
    """Authenticate as alice, and return the error code."""

    async def try_it() -> int:
        listeners: str = process.events("serving")[-1]["listeners"]
        async with raw_client(listeners.split("SASL_PLAINTEXT://")[1]) as client:
            return int((await log_in(client, mechanism=mechanism)).error_code)

    return asyncio.run(try_it())


def test_a_running_node_follows_the_command(tmp_path: Path) -> None:
    where = ["--catalog-url", f"sqlite:///{tmp_path}/data/catalog.db"]
    with NodeProcess(tmp_path, listeners=LISTENERS, sasl_failed_authentication_delay_ms=0) as process:
        said = ok("create", "alice", *where, "--password-file", "-", typed=f"{PASSWORD}\nmore")
        assert said == "user alice can authenticate with SCRAM-SHA-256 and SCRAM-SHA-512\n"
        wait_until(lambda: log_in_to(process, "SCRAM-SHA-256") == ErrorCode.NONE, "the node knows the user")
        assert log_in_to(process, "SCRAM-SHA-512") == ErrorCode.NONE
        said = ok("delete", "alice", *where, "--mechanism", "scram-sha-256", "--yes")
        assert said == "user alice can no longer authenticate with SCRAM-SHA-256\n"
        wait_until(lambda: log_in_to(process, "SCRAM-SHA-256") == ErrorCode.SASL_AUTHENTICATION_FAILED, "it is gone")
        assert process.terminate() == 0
    rows = ok("list", *where).splitlines()
    assert [row.split() for row in rows] == [["user", "mechanism", "iterations"], ["alice", "SCRAM-SHA-512", "4096"]]
    with NodeProcess(tmp_path, listeners=LISTENERS) as process:
        assert log_in_to(process, "SCRAM-SHA-512") == ErrorCode.NONE
        assert process.terminate() == 0
    ok("delete", "alice", *where, "--yes")
    assert ok("list", *where) == "there are no users\n"
    done = run("delete", "alice", *where)
    assert (done.exit_code, done.output) == (1, "Error: user alice does not exist, or has no such mechanism\n")
    secret = {PASSWORD_ENV: PASSWORD}
    assert "set ANABRANCH_USER_PASSWORD" in run("create", "alice", *where).output
    assert "the password is empty" in run("create", "alice", *where, "--password-file", "-", typed="\n").output
    assert "must consist of ASCII" in run("create", "älice", *where, **secret).output
    assert "4096<=x<=16384" in run("create", "alice", *where, "--iterations", "4095", **secret).output
    ok("create", "alice", *where, "--iterations", "5000", "--mechanism", "SCRAM-SHA-512", **secret)
    assert ok("list", *where).splitlines()[1].split() == ["alice", "SCRAM-SHA-512", "5000"]
    listed = json.loads(ok("list", *where, "--output", "json"))
    assert listed == [{"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 5000}]


def test_users_of_a_running_cluster(tmp_path: Path) -> None:
    secret = {PASSWORD_ENV: PASSWORD}
    with NodeProcess(tmp_path, listeners=LISTENERS, sasl_failed_authentication_delay_ms=0) as process:
        plaintext, _, _ = process.events("serving")[-1]["listeners"].partition(",")
        there = ["-b", plaintext.removeprefix("PLAINTEXT://")]
        assert ok("list", *there) == "there are no users\n"
        said = ok("create", "alice", *there, "--iterations", "5000", **secret)
        assert said == "user alice can authenticate with SCRAM-SHA-256 and SCRAM-SHA-512\n"
        assert log_in_to(process, "SCRAM-SHA-256") == ErrorCode.NONE
        done = run("create", "alice", *there, **secret)
        assert (done.exit_code, done.output) == (1, "Error: user alice exists: `user passwd` changes its password\n")
        done = run("passwd", "bob", *there, **secret)
        assert (done.exit_code, done.output) == (1, "Error: user bob does not exist: `user create` creates it\n")
        ok("delete", "alice", *there, "--mechanism", "SCRAM-SHA-256", "-y")
        assert log_in_to(process, "SCRAM-SHA-256") == ErrorCode.SASL_AUTHENTICATION_FAILED
        said = ok("passwd", "alice", *there, **{PASSWORD_ENV: "another-one"})
        assert said == "user alice can authenticate with SCRAM-SHA-512\n"
        assert log_in_to(process, "SCRAM-SHA-512") == ErrorCode.SASL_AUTHENTICATION_FAILED
        ok("passwd", "alice", *there, "--mechanism", "scram-sha-256", **secret)
        assert log_in_to(process, "SCRAM-SHA-256") == ErrorCode.NONE
        assert json.loads(ok("list", *there, "-o", "json")) == [
            {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
            {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 5000},
        ]
        done = run("delete", "alice", *there, typed="n\n")
        assert done.exit_code == 1
        assert "Delete the credentials of user alice for SCRAM-SHA-256 and SCRAM-SHA-512? [y/N]" in done.output
        assert json.loads(ok("delete", "alice", *there, "--yes", "-o", "json")) == {
            "user": "alice",
            "removed": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        }
        done = run("delete", "alice", *there)
        assert (done.exit_code, done.output) == (1, "Error: user alice does not exist, or has no such mechanism\n")
        assert process.terminate() == 0


def test_a_cluster_and_a_catalog_exclude_each_other(tmp_path: Path) -> None:
    done = run("list", "-b", "127.0.0.1:1", "--data-dir", tmp_path / "data")
    assert (done.exit_code, "give one" in done.output) == (2, True)


def test_a_catalog_that_no_node_has_created_is_refused(tmp_path: Path) -> None:
    done = run("create", "alice", "--data-dir", tmp_path / "data", **{PASSWORD_ENV: PASSWORD})
    assert done.exit_code == 1
    assert done.output.endswith("start the node first\n")
    assert not list(tmp_path.iterdir()), "nothing is created"


def test_a_hash_for_the_file_of_plain(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(ok("hash", "alice", **{PASSWORD_ENV: PASSWORD}))
    assert read_users(path)["alice"].fits(PASSWORD.encode())
    for name in ("", "#a", "a:$b", "a\nb"):
        assert run("hash", name, **{PASSWORD_ENV: PASSWORD}).exit_code == 1


@pytest.mark.parametrize("command", ["create", "passwd", "hash"])
def test_no_option_takes_a_password(command: str) -> None:
    assert "--password " not in ok(command, "--help")
