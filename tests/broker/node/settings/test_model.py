"""Sources of settings, error messages for invalid ones, and documentation that agrees with the models."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.broker.node.settings.area import GIB
from anabranch.broker.node.settings.documentation import documentation
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.names import Setting, all_settings, describe_default
from anabranch.broker.node.settings.sources import load, unknown_environment
from anabranch.broker.node.settings.stores import store_configs
from anabranch.broker.operator.cli.serve import serve

ROOT = Path(__file__).parents[4]


def test_defaults_hold() -> None:
    settings = load({}, {})
    assert settings == Settings()
    assert settings.listener.port == 9092
    assert settings.wal_path == Path("data/wal")
    assert settings.objects_path == Path("data/objects")
    assert settings.catalog_url == f"sqlite:///{Path.cwd()}/data/catalog.db"


def test_flags_go_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[listener]\nport = 1\nhost = "0.0.0.0"\n[wal]\ncapacity_bytes = "2GiB"\n[node]\nnode_id = 7\n')
    environment = {"ANABRANCH_PORT": "2", "ANABRANCH_HOST": "127.0.0.2"}
    settings = load({"listener.port": "3"}, environment, file)
    assert (settings.listener.port, settings.listener.host) == (3, "127.0.0.2")
    assert (settings.wal.capacity_bytes, settings.node.node_id) == (2 * GIB, 7)
    assert load({}, {"ANABRANCH_CONFIG": str(file)}).listener.port == 1


BAD = {
    "not a number": ({"ANABRANCH_PORT": "x"}, "setting listener.port from environment variable ANABRANCH_PORT: 'x'"),
    "out of range": ({"ANABRANCH_PORT": "70000"}, "should be less than or equal to 65535"),
    "not a size": ({"ANABRANCH_WAL_CAPACITY_BYTES": "1 parsec"}, "setting wal.capacity_bytes"),
    "not a choice": ({"ANABRANCH_OBJECTS_STORE": "tape"}, "should be 'local' or 's3'"),
    "no release of Apache Kafka": (
        {"ANABRANCH_COMPATIBILITY_KAFKA": "3.10"},
        "'3.10' is not allowed: should be '2.0', ",
    ),
    "half a key for engines": (
        {"ANABRANCH_TABLES_S3_ACCESS_KEY_ID": "a"},
        "setting tables.s3_secret_access_key: unset, but the other part of the key is set",
    ),
    "no bucket": ({"ANABRANCH_OBJECTS_STORE": "s3"}, "setting objects.bucket: empty"),
    "a registry without a scheme": (
        {"ANABRANCH_ADMIN_SCHEMA_REGISTRY_URL": "h:8081"},
        "admin.schema_registry_url: expected an address such as http://",
    ),
    "a registry of tables without a scheme": (
        {"ANABRANCH_TABLES_REGISTRY": "h:8081"},
        "tables.registry: expected an address such as http://",
    ),
    "no scheme": ({"ANABRANCH_OBJECTS_ENDPOINT": "h:9000"}, "objects.endpoint: expected an address such as http://"),
    "not a catalog": ({"ANABRANCH_CATALOG_URL": "mysql://h/d"}, "setting catalog.url: expected sqlite:///PATH or"),
    "not a name": ({"ANABRANCH_CLUSTER": "a b"}, "setting node.cluster"),
    "limits crossed": ({"ANABRANCH_NETWORK_NODE_BYTES_MAX": "2048"}, "is less than request_bytes_max"),
    "timeouts crossed": ({"ANABRANCH_GROUP_SESSION_TIMEOUT_MIN_MS": "9999999"}, "is more than"),
    "one port twice": (
        {"ANABRANCH_PORT": "9644"},
        "setting admin.port: 9644 is also listener.port, at the same address (127.0.0.1): change one of them",
    ),
    "one port twice, everywhere and here": (
        {"ANABRANCH_ADMIN_PORT": "9092", "ANABRANCH_HOST": "0.0.0.0"},
        "setting admin.port: 9092 is also listener.port, and 0.0.0.0 includes 127.0.0.1",
    ),
    "one port twice, by name": (
        {"ANABRANCH_ADMIN_PORT": "9092", "ANABRANCH_ADMIN_HOST": "localhost"},
        "setting admin.port: 9092 is also listener.port, and 127.0.0.1 includes localhost",
    ),
    "one port for clients and nodes": (
        {"ANABRANCH_CLUSTER_INTERNAL_PORT": "9092"},
        "setting cluster.internal_port: 9092 is also listener.port, at the same address (127.0.0.1): change one",
    ),
    "one port for nodes and the admin": (
        {"ANABRANCH_CLUSTER_INTERNAL_PORT": "9644", "ANABRANCH_CLUSTER_INTERNAL_HOST": "0.0.0.0"},
        "setting admin.port: 9644 is also cluster.internal_port, and 0.0.0.0 includes 127.0.0.1",
    ),
    "no such variable, but that of the setting's name": (
        {"ANABRANCH_LISTENER_PORT": "9093"},
        "environment variable ANABRANCH_LISTENER_PORT: no setting has this name; the nearest is ANABRANCH_PORT",
    ),
    "no such variable": (
        {"ANABRANCH_PROT": "9093"},
        "environment variable ANABRANCH_PROT: no setting has this name; the nearest is ANABRANCH_PORT",
    ),
    "nothing like it": (
        {"ANABRANCH_XYZZY": "1"},
        "environment variable ANABRANCH_XYZZY: no setting has this name (see `anabranch serve --help`)",
    ),
    "no such file": ({"ANABRANCH_CONFIG": "/nowhere.toml"}, "settings file /nowhere.toml: No such file"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_setting_is_named_in_one_line(what: str) -> None:
    environment, expected = BAD[what]
    with pytest.raises(SettingsError) as raised:
        load({}, environment)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[wal", "not valid TOML"),
        ("[wall]\n", "unknown table [wall]; known are node, listener"),
        ("[wall]\n", ", admin, schema_registry, tables, log, stores"),
        ("[wal]\nsize = 1\n", "unknown setting wal.size; [wal] has kind, path, store"),
        ("wal = 1\n", "wal is a table of settings: expected a line [wal]"),
        ('["a\\u001bb"]\n', r"unknown table ['a\x1bb']"),
        ('[wal]\n"a\\nb" = 1\n', r"unknown setting wal.'a\nb'"),
        ('[stores.a]\n"a\\nb" = 1\n', r"unknown setting stores.a.'a\nb'; [stores.a] has"),
        ("a = " + "[" * 5000, "values are nested too deeply"),
        ("[node]\nnode_id = true\n", "'True' is not allowed: should be a number or a text, not true or false"),
        ("[compatibility]\nkafka = 3.6\n", " or '4.4', in quotes"),
        ('[wal]\ncapacity_bytes = "12QiB"\n', "one with a unit (KiB, MiB, GiB, TiB, or KB, MB, GB, TB) as in 512MiB"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load({}, {}, file)
    assert expected in str(raised.value)
    assert str(raised.value).isprintable()


def test_names_are_unique_and_slips_are_noticed() -> None:
    names = [setting.outside_name for setting in all_settings()]
    assert len(names) == len(set(names))
    assert unknown_environment({"ANABRANCH_PROT": "1", "ANABRANCH_PORT": "1", "PATH": ""}) == ["ANABRANCH_PROT"]


@pytest.mark.parametrize(
    "environment",
    [
        {"ANABRANCH_PORT": "0", "ANABRANCH_ADMIN_PORT": "0"},
        {"ANABRANCH_PORT": "9644", "ANABRANCH_ADMIN_ENABLED": "false"},
        {"ANABRANCH_PORT": "9644", "ANABRANCH_HOST": "192.0.2.1"},
    ],
)
def test_ports_that_do_not_meet_are_accepted(environment: dict[str, str]) -> None:
    assert load({}, environment).listener.port == int(environment["ANABRANCH_PORT"])


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, ("127.0.0.1", 0)),  # SQLite's nodes share a machine
        ({"ANABRANCH_CLUSTER_INTERNAL_HOST": "192.0.2.2"}, ("192.0.2.2", 0)),
        ({"ANABRANCH_CATALOG_URL": "postgresql://h/d"}, ("192.0.2.1", 0)),
        ({"ANABRANCH_CLUSTER_INTERNAL_PORT": "0"}, ("192.0.2.1", 0)),
        ({"ANABRANCH_CATALOG_URL": "postgresql://h/d", "ANABRANCH_CLUSTER_INTERNAL_PORT": "7000"}, ("192.0.2.1", 7000)),
    ],
)
def test_a_node_listens_for_others(environment: dict[str, str], place: tuple[str, int]) -> None:
    settings = load({}, {"ANABRANCH_HOST": "192.0.2.1", **environment})
    assert (settings.internal_host, settings.internal_port) == place


def test_the_variables_of_the_projects_own_tools_are_known() -> None:
    pattern = re.compile(r"""environ(?:\.get\(|\[)"(ANABRANCH_\w+)"|^\s*(?:export )?(ANABRANCH_\w+)=""", re.MULTILINE)
    sources = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("scripts/*.py"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    found = {
        name for path in sources for match in pattern.finditer(path.read_text()) for name in match.groups() if name
    }
    assert "ANABRANCH_SOAK" in found
    assert not unknown_environment(dict.fromkeys(found, ""))


def test_variables_that_an_orchestrator_sets_for_its_services_are_nobodys_slip() -> None:
    """Kubernetes and Docker's links name them after a service, which may well be called anabranch-something."""
    injected = {
        "ANABRANCH_KAFKA_SERVICE_HOST": "10.0.0.7",
        "ANABRANCH_KAFKA_SERVICE_PORT": "9092",
        "ANABRANCH_KAFKA_SERVICE_PORT_CLIENTS": "9092",
        "ANABRANCH_KAFKA_PORT": "tcp://10.0.0.7:9092",
        "ANABRANCH_KAFKA_PORT_9092_TCP": "tcp://10.0.0.7:9092",
        "ANABRANCH_KAFKA_PORT_9092_TCP_ADDR": "10.0.0.7",
        "ANABRANCH_KAFKA_PORT_9092_TCP_PORT": "9092",
        "ANABRANCH_KAFKA_PORT_9092_TCP_PROTO": "tcp",
    }
    assert unknown_environment(injected) == []
    assert unknown_environment({"ANABRANCH_KAFKA_PORT": "9092"}) == ["ANABRANCH_KAFKA_PORT"]


def test_help_lists_every_flag() -> None:
    shown = CliRunner().invoke(serve, ["--help"], terminal_width=200)
    assert shown.exit_code == 0
    for setting in all_settings():
        if setting.flag:
            assert f"{setting.flag} " in shown.output


def test_a_secret_has_no_flag_and_is_not_shown(tmp_path: Path) -> None:
    secrets = {setting.key: setting for setting in all_settings() if setting.is_secret}
    assert set(secrets) == {
        "ssl.key_password",
        "admin.read_token",
        "admin.operate_token",
        "admin.schemas_token",
        "admin.tables_token",
        "tables.registry_credentials",
        "tables.s3_secret_access_key",
        "admin.connect_credentials",
        "admin.schema_registry_credentials",
        "delegation_token.secret_key",
    }
    for secret in secrets.values():
        assert not secret.flag
        beside = {"tables.s3_access_key_id": "engine"} if secret.name.startswith("s3_") else {}
        settings = load(beside, {secret.env: "marked"})
        assert getattr(getattr(settings, secret.area), secret.name).reveal() == "marked"
        assert "marked" not in repr(settings) + str(asdict(settings))
    file = tmp_path / "node.toml"
    file.write_text('[ssl]\nkey_password = ["marked"]\n')
    with pytest.raises(SettingsError, match=r"setting ssl.key_password from .*: '\[hidden\]' is not allowed: "):
        load({}, {}, file)


def test_the_documentation_is_the_models() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == documentation(), "run `python -m anabranch.broker.node.settings.documentation`"


def test_more_stores_come_from_file_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        '[stores.cold-one]\ntype = "s3"\nbucket = "b"\nregion = "r"\n[stores.b]\ntype = "local"\npath = "p"\n'
    )
    environment = {"ANABRANCH_STORE_COLD_ONE_BUCKET": "c", "ANABRANCH_STORE_COLD_ONE_PATH_STYLE": "false"}
    settings = load({"stores": ("b.path=q",)}, environment, file)
    cold = settings.stores["cold-one"]
    assert (cold.type, cold.bucket, cold.region, cold.path_style) == ("s3", "c", "r", False)
    assert settings.stores["b"].path == Path("q")
    assert [config.name for config in store_configs(settings)] == ["local", "cold-one", "b"]
    assert unknown_environment({**environment, "ANABRANCH_STORE_BUCKET": "x"}) == ["ANABRANCH_STORE_BUCKET"]


BAD_STORES = {
    "a name": ('[stores."A b"]\ntype = "local"\npath = "p"\n', "store 'A b': its name must begin with a letter"),
    "a field": ("[stores.a]\nsize = 1\n", "unknown setting stores.a.size; [stores.a] has type, path, bucket"),
    "no table": ("stores.a = 1\n", "expected a table [stores.a] with type, path"),
    "no type": ('[stores.a]\npath = "p"\n', "setting stores.a.type: required"),
    "a type": ('[stores.a]\ntype = "tape"\n', "setting stores.a.type from "),
    "no bucket": ('[stores.a]\ntype = "s3"\n', "setting stores.a.bucket: empty"),
    "no scheme": (
        '[stores.a]\ntype = "s3"\nbucket = "b"\nendpoint = "h:9000"\n',
        "setting stores.a.endpoint: expected an address such as http://127.0.0.1:9000, found 'h:9000'",
    ),
    "no path": ('[stores.a]\ntype = "local"\n', "setting stores.a.path: unset"),
    "the default's name": ('[stores.local]\ntype = "local"\npath = "p"\n', "is the name of the store that [objects]"),
}


@pytest.mark.parametrize("what", BAD_STORES)
def test_a_bad_store_is_named_in_one_line(tmp_path: Path, what: str) -> None:
    text, expected = BAD_STORES[what]
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load({}, {}, file)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_store_flag_names_store_and_field() -> None:
    with pytest.raises(SettingsError, match=r"flag --store: expected NAME.FIELD=VALUE, .* found 'cold'"):
        load({"stores": ("cold",)}, {})


@pytest.mark.parametrize(
    "setting", [each for each in all_settings() if isinstance(each.definition.default, int)], ids=lambda each: each.key
)
def test_a_default_is_taken_as_help_shows_it(setting: Setting) -> None:
    found = load({setting.key: describe_default(setting)}, {})
    assert getattr(getattr(found, setting.area), setting.name) == setting.definition.default


def test_an_id_is_a_number_or_chosen_and_what_nodes_share_stays_where_it_is(tmp_path: Path) -> None:
    settings = load({"node.node_id": "auto", "node.data_dir": tmp_path}, {})
    assert settings.has_auto_id
    chosen = settings.with_node_id(7)
    assert (chosen.node.node_id, chosen.has_auto_id) == (7, False)
    assert chosen.wal_path == tmp_path / "node-7" / "wal"
    assert (chosen.objects_path, chosen.catalog_url) == (settings.objects_path, settings.catalog_url)
    for name in ("node-7", "node-12", "node-07", "node-x"):
        (tmp_path / name).mkdir()
    assert settings.node_folders() == [7, 12]
    with pytest.raises(SettingsError, match="node_id"):
        load({"node.node_id": "-2"}, {})
    with pytest.raises(SettingsError, match=r"setting wal.path: set, but with node.node_id = auto"):
        load({"node.node_id": "auto", "wal.path": tmp_path / "wal"}, {})
