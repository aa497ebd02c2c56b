"""`anabranch profile`: what a profile keeps, and which of its values commands use."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli import main
from anabranch.broker.operator.cli.admin_port import AdminOptions, NodeOptions
from anabranch.broker.operator.cli.client import make_client, with_ports
from anabranch.broker.operator.cli.profiles import NO_PROFILE, Profile, chosen_profile, profiles_file


def run(*arguments: Any, **environment: str) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, arguments)], env={"COLUMNS": "200", **environment})


def ok(*arguments: Any) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_profiles_are_created_used_shown_and_deleted(tmp_path: Path) -> None:
    assert ok("list") == "there are no profiles\n"
    properties = tmp_path / "a dmin.properties"
    options = ["-b", "kafka-1,kafka-2:9094", "--command-config", properties, "--admin", "https://kafka-1:9644"]
    assert ok("create", "staging", *options) == "created profile staging, which is in use now\n"
    ok("create", "local", "-b", "::1", "--command-property", 'ssl.ca.location=/c"a\\.pem')
    assert json.loads(ok("list", "-o", "json")) == [
        {
            "profile": "local",
            "in_use": True,
            "bootstrap_server": "[::1]:9092",
            "command_config": None,
            "properties": {"ssl.ca.location": '/c"a\\.pem'},
            "admin": None,
            "admin_token_file": None,
            "admin_ca_file": None,
            "admin_certificate_file": None,
        },
        {
            "profile": "staging",
            "in_use": False,
            "bootstrap_server": "kafka-1:9092,kafka-2:9094",
            "command_config": str(properties),
            "properties": {},
            "admin": "https://kafka-1:9644",
            "admin_token_file": None,
            "admin_ca_file": None,
            "admin_certificate_file": None,
        },
    ]
    assert ok("use", "staging") == "profile staging is in use now\n"
    assert [line.split()[:2] for line in ok("list").splitlines()[1:]] == [["local", "[::1]:9092"], ["*", "staging"]]
    assert str(profiles_file()) in ok("show")
    assert "[::1]:9092" in ok("show", "local")
    assert chosen_profile(None).bootstrap_server == "kafka-1:9092,kafka-2:9094"
    assert chosen_profile("local").bootstrap_server == "[::1]:9092"
    ok("delete", "staging")
    assert chosen_profile(None) == NO_PROFILE
    assert run("show").output == "Error: no profile is in use: name one\n"
    assert "profile 'staging' does not exist; known are local" in run("use", "staging").output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("create", "a/b"), 2, "a profile has up to 64 letters"),
        (("create", "a", "-b", "kafka:x"), 2, "expected HOST:PORT"),
        (("create", "a", "--admin", "kafka"), 2, "expected HOST:PORT or https://HOST:PORT"),
        (("create", "a", "--command-property", "sasl.password=x"), 2, "is a secret"),
        (("create", "a", "--command-property", "sasl.mechanisms=x"), 2, "unknown; known are"),
        (("create", "a", "--admin", "a:1", "--admin-ca-file", "a\nb"), 2, "it has characters that cannot be printed"),
        (("create", "a", "--admin-token-file", "x"), 2, "login or token is for: --admin"),
        (("create", "a", "--command-config", "x"), 2, "login or token is for: --bootstrap-server"),
        (("create", "known"), 1, "profile known exists: delete it first"),
        (("delete", "a"), 2, "profile 'a' does not exist; known are known"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    ok("create", "known")
    before = profiles_file().read_text()
    done = run(*arguments)
    assert (done.exit_code, said in done.output) == (code, True), done.output
    assert profiles_file().read_text() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current = 1", "expected current = NAME"),
        ("x = ", "not valid TOML"),
        ("[profiles.a]\nadmim = 'x'", "profile 'a': unknown 'admim'; known are admin"),
        ("[profiles.a]\nadmin = 1", "profile 'a': admin must be a text"),
        ("[profiles.a]\ncommand_property = 'x'", "profile 'a': command_property must be a table of texts"),
        ("[profiles.a]\ncommand_property = { x = 1 }", "profile 'a': command_property must be a table of texts"),
        ("[profiles.a]\nadmin_token_file = 'x'", "profile 'a': it lacks admin, for which its other values are"),
        ("current = 'b'\n[profiles.a]", "profile 'b' does not exist; known are a"),
    ],
)
def test_a_file_that_was_edited_badly_is_named(text: str, said: str) -> None:
    profiles_file().parent.mkdir(parents=True)
    profiles_file().write_text(text)
    done = CliRunner().invoke(main, ["topic", "list"])
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_options_and_environment_are_stronger_than_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "a.properties", tmp_path / "b.properties"
    file.write_text("client.id=a\nsecurity.protocol=SSL")
    other.write_text("client.id=b")
    profile = Profile("kafka:9092", str(file), {"ssl.endpoint.identification.algorithm": ""})
    made = make_client(None, None, {}, profile)
    assert (made.servers, made.properties["client.id"], made.settings.protocol) == ("kafka:9092", "a", "SSL")
    assert made.properties["ssl.endpoint.identification.algorithm"] == ""
    made = make_client(None, other, {}, profile)
    assert (made.servers, made.properties["client.id"], made.settings.protocol) == ("kafka:9092", "b", "PLAINTEXT")
    for servers in ("elsewhere", None):
        if servers is None:
            monkeypatch.setenv("KAFKA_CLIENT_BOOTSTRAP_SERVERS", "elsewhere")
        made = make_client(servers, None, {}, profile)
        assert (made.servers, made.settings.protocol) == ("elsewhere:9092", "PLAINTEXT"), "no login for a stranger"
    assert make_client(None).servers == "elsewhere:9092"
    monkeypatch.delenv("KAFKA_CLIENT_BOOTSTRAP_SERVERS")
    assert make_client(None).servers == "127.0.0.1:9092"
    assert make_client(None, None, {"security.protocol": "PLAINTEXT"}, profile).settings.protocol == "PLAINTEXT"


def test_a_profile_is_chosen_by_option_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ok("create", "one", "-b", "127.0.0.1:1")
    ok("create", "two", "-b", "127.0.0.1:2")
    for arguments, variable, port in (((), "", 2), ((), "one", 1), (("--profile", "two"), "one", 2)):
        monkeypatch.setenv("ANABRANCH_PROFILE", variable)
        done = CliRunner().invoke(main, ["group", "list", *arguments])
        assert f"cannot connect to 127.0.0.1:{port}" in done.output
    done = CliRunner().invoke(main, ["group", "list", "--profile", "three"])
    assert (done.exit_code, "does not exist; known are one, two" in done.output) == (2, True)


def test_an_admin_port_comes_from_the_option_the_settings_or_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, settings = tmp_path / "token", tmp_path / "node.toml"
    token.write_text("secret-of-the-profile\n")
    settings.write_text("[node]\n")
    profile = Profile(admin="kafka-1:1000", admin_token_file=str(token))

    def found(address: str | None, config: Path | None = None) -> tuple[str, str]:
        client = make_client(None, profile=profile)
        port = NodeOptions(AdminOptions(address, profile=profile), client, config).find()
        return str(port), port.token

    for name in [name for name in os.environ if name.startswith("ANABRANCH_")]:
        monkeypatch.delenv(name)
    assert found(None) == ("kafka-1:1000", "secret-of-the-profile")
    assert found("kafka-2:2000") == ("kafka-2:2000", ""), "no token for a stranger"
    assert found(None, settings) == ("127.0.0.1:9644", "")
    monkeypatch.setenv("ANABRANCH_ADMIN_OPERATE_TOKEN", "token-of-environment")
    assert found(None) == ("kafka-1:1000", "token-of-environment")
    monkeypatch.setenv("ANABRANCH_ADMIN_PORT", "3000")
    assert found(None) == ("127.0.0.1:3000", "token-of-environment")


def test_the_file_is_the_users_own() -> None:
    ok("create", "a")
    assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("kafka", "kafka:9092"),
        ("kafka:1, other", "kafka:1,other:9092"),
        ("[::1]", "[::1]:9092"),
        ("::1", "[::1]:9092"),
        ("[::1]:5", "[::1]:5"),
        ("10.0.0.1", "10.0.0.1:9092"),
        ("kafka:", "kafka:"),
        ("", ""),
    ],
)
def test_an_address_needs_no_port(given: str, expected: str) -> None:
    assert with_ports(given) == expected
