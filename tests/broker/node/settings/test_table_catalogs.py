"""Other catalogs that tables may be published in: where their settings come from, and what is refused."""

from pathlib import Path

import pytest

from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.sources import load, unknown_environment
from anabranch.broker.node.settings.table_catalogs import external_catalog

SECRET = "s3cret"
REST = '[table_catalogs.lake]\ntype = "rest"\nuri = "https://c.example.com/api/"\n'
JDBC = '[table_catalogs.lake]\ntype = "jdbc"\nuri = "postgresql://u@h/db"\n'


def file_of(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text)
    return path


def test_catalogs_come_from_file_environment_and_flags(tmp_path: Path) -> None:
    environment = {
        "ANABRANCH_TABLE_CATALOG_LAKE_CREDENTIAL": f"id:{SECRET}",
        "ANABRANCH_TABLE_CATALOG_LAKE_OAUTH2_SERVER_URI": "https://login.example.com",
        "ANABRANCH_TABLE_CATALOG_LAKE_HEADERS": f"Polaris-Realm: POLARIS\n\nX-Key: {SECRET}2",
        "ANABRANCH_TABLE_CATALOG_DEEP_SEA_TYPE": "jdbc",
        "ANABRANCH_TABLE_CATALOG_DEEP_SEA_URI": f"postgresql://u:{SECRET}3@h/db",
    }
    settings = load({"table_catalogs": ("lake.namespace=a.b",)}, environment, file_of(tmp_path, REST))
    assert unknown_environment(environment) == []
    lake = external_catalog("lake", settings.table_catalogs["lake"])
    assert (lake.uri, lake.namespace, lake.catalog_name) == ("https://c.example.com/api", ("a", "b"), "lake")
    assert lake.properties == {
        "credential": f"id:{SECRET}",
        "oauth2-server-uri": "https://login.example.com",
        "header.Polaris-Realm": "POLARIS",
        "header.X-Key": f"{SECRET}2",
    }
    assert {f"id:{SECRET}", SECRET, f"{SECRET}2"} <= set(lake.secrets)
    sea = external_catalog("deep-sea", settings.table_catalogs["deep-sea"])
    assert (sea.type, sea.catalog_name, list(sea.secrets)) == ("jdbc", "deep-sea", [f"{SECRET}3"])
    assert SECRET not in repr(lake) + repr(sea)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[table_catalogs.lake]\ntype = "glue"\nuri = "x"\n', "setting table_catalogs.lake.type from "),
        ('[table_catalogs.lake]\ntype = "rest"\n', "setting table_catalogs.lake.uri: required"),
        (REST + "size = 1\n", "unknown setting table_catalogs.lake.size; [table_catalogs.lake] has type, uri, "),
        (REST.replace("https", SECRET), "setting table_catalogs.lake.uri: expected an address such as https://"),
        (JDBC.replace("postgresql", SECRET), "setting table_catalogs.lake.uri: expected postgresql://USER@HOST/DB or"),
        (REST + f'password = "{SECRET}"\n', "table_catalogs.lake.password: set, but a catalog of type 'rest' has no"),
        (JDBC + f'token = "{SECRET}"\n', "setting table_catalogs.lake.token: set, but a catalog of type 'jdbc' has no"),
        (REST + f'token = "{SECRET}"\ncredential = "x"\n', "setting table_catalogs.lake.token: set, but so is cred"),
        (REST + f'headers = "{SECRET}"\n', "setting table_catalogs.lake.headers: expected lines of NAME: VALUE"),
        (REST + "token = 3\n", "setting table_catalogs.lake.token from "),
        (REST + 'namespace = "a..b"\n', "setting table_catalogs.lake.namespace: expected names separated by dots"),
        (REST.replace("lake", "L"), "table catalog 'L': its name must begin with a letter"),
        ("table_catalogs.lake = 1\n", "expected a table [table_catalogs.lake] with type, uri"),
    ],
)
def test_a_bad_catalog_is_named_in_one_line_without_secrets(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load({}, {}, file_of(tmp_path, text))
    assert expected in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_secret_has_no_flag(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"flag --table-catalog: expected NAME.FIELD=VALUE, FIELD one of") as raised:
        load({"table_catalogs": (f"lake.token={SECRET}",)}, {}, file_of(tmp_path, REST))
    assert SECRET not in str(raised.value)
