"""Where settings come from: flags, then environment, then a TOML file, then defaults; the first that names one wins.

A value that is not allowed ends in one `SettingsError` line naming the setting, where it was set, the value found and
what is allowed.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from broker.settings.memory import documentation as memory_documentation
from broker.settings.model import Area, NamedStoreSettings, Settings

ENV_PREFIX = "ANABRANCH_"
CONFIG_ENV = "ANABRANCH_CONFIG"
STORE_ENV_PREFIX = "ANABRANCH_STORE_"
STORE_FLAG = "--store"
STORES = "stores"
_PLAIN_AREAS = {"node", "listener"}
_STORE_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_ENDPOINT = re.compile(r"https?://[^/]", re.IGNORECASE)
_CATALOG_URL = re.compile(r"(sqlite|postgresql)(\+\w+)?://")
_TOOLS = frozenset(
    ENV_PREFIX + name
    for name in (
        "CACHE",
        "PROPERTY_EXAMPLES",
        "REQUIRE_TOOLS",
        "SOAK",
        "SUITE_SOURCES",
        "WAL_HISTORIES",
        "WAL_SEED",
    )
)
"""Variables of the project's own tools and tests: no settings, and no slips of the pen either."""
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class SettingsError(Exception):
    """A setting that cannot be used; the text is the one line to show."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with all its outside names."""

    area: str
    name: str
    field: FieldInfo

    @property
    def key(self) -> str:
        """Name in the TOML file: table and key."""
        return f"{self.area}.{self.name}"

    @property
    def outside_name(self) -> str:
        """Name in flags and environment, with underscores."""
        return self.name if self.area in _PLAIN_AREAS else f"{self.area}_{self.name}"

    @property
    def flag(self) -> str:
        """Command line flag."""
        return "--" + self.outside_name.replace("_", "-")

    @property
    def env(self) -> str:
        """Environment variable."""
        return ENV_PREFIX + self.outside_name.upper()


def area_models() -> Iterator[tuple[str, type[Area]]]:
    """Each area's name and model, in order; the additional stores are none."""
    for name, field in Settings.model_fields.items():
        if name == STORES:
            continue
        model = field.annotation
        assert isinstance(model, type), "an area is a model"
        assert issubclass(model, Area), "an area is a model"
        yield name, model


def all_settings() -> Iterator[Setting]:
    """Every setting, area by area."""
    for area, model in area_models():
        for name, field in model.model_fields.items():
            yield Setting(area, name, field)


def describe_default(setting: Setting) -> str:
    """The default as shown in help and documentation."""
    default = setting.field.default
    if default is None:
        return "unset"
    if default == "":
        return "empty"
    if isinstance(default, bool):
        return "true" if default else "false"
    if "bytes" in setting.name and isinstance(default, int) and default >= 1024:
        for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if default % size == 0:
                return f"{default // size}{unit}"
    return str(default)


def load(
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> Settings:
    """Build the settings; raises SettingsError.

    `flags` maps keys such as `wal.capacity_bytes` to what was given, and `stores` to texts `NAME.FIELD=VALUE`.
    """
    environment = os.environ if environment is None else environment
    _check_environment(environment)
    if config_file is None and environment.get(CONFIG_ENV):
        config_file = Path(environment[CONFIG_ENV])
    from_file = _read_file(config_file) if config_file is not None else {}
    values: dict[str, dict[str, object]] = {}
    origins: dict[tuple[str, ...], tuple[str, object]] = {}
    for setting in all_settings():
        found: tuple[str, object] | None = None
        if flags is not None and flags.get(setting.key) is not None:
            found = (f"flag {setting.flag}", flags[setting.key])
        elif setting.env in environment:
            found = (f"environment variable {setting.env}", environment[setting.env])
        elif setting.name in from_file.get(setting.area, {}):
            found = (f"{config_file}", from_file[setting.area][setting.name])
        if found is not None:
            origins[setting.area, setting.name] = found
            values.setdefault(setting.area, {})[setting.name] = found[1]
    tables = _store_tables(from_file.get(STORES, {}), environment, (flags or {}).get(STORES), config_file)
    for store, fields in tables.items():
        values.setdefault(STORES, {})[store] = {field: value for field, (_, value) in fields.items()}
        origins.update({(STORES, store, field): found for field, found in fields.items()})
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_one_line(error, origins)) from None
    _check_together(settings)
    return settings


def unknown_environment(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that name no setting.

    Those of the project's own tools are known, and so are those that Kubernetes and Docker derive from the names of
    services, which may begin like ours.
    """
    known = {setting.env for setting in all_settings()} | {CONFIG_ENV} | _TOOLS
    return sorted(
        name
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX)
        and name not in known
        and _store_variable(name) is None
        and not _is_service_link(name, value)
    )


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.search(name)) or (name.endswith("_PORT") and bool(_SERVICE_ADDRESS.match(value)))


def _check_environment(environment: Mapping[str, str]) -> None:
    """Raise SettingsError for the first variable that names no setting: whoever set it means something by it."""
    for name in unknown_environment(environment):
        settings = [setting.env.removeprefix(ENV_PREFIX) for setting in all_settings()]
        near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), settings, n=1)
        advice = f"; the nearest is {ENV_PREFIX}{near[0]}" if near else " (see `anabranch serve --help`)"
        raise SettingsError(f"environment variable {name}: no setting has this name{advice}")


def _store_tables(
    from_file: Mapping[str, Mapping[str, object]],
    environment: Mapping[str, str],
    flags: object,
    config_file: Path | None,
) -> dict[str, dict[str, tuple[str, object]]]:
    """What was said of each additional store: by store and field where it was set, and the value."""
    tables: dict[str, dict[str, tuple[str, object]]] = {}
    for store, table in from_file.items():
        tables.setdefault(store, {}).update({field: (f"{config_file}", value) for field, value in table.items()})
    for variable, text in environment.items():
        place = _store_variable(variable)
        if place is not None:
            tables.setdefault(place[0], {})[place[1]] = (f"environment variable {variable}", text)
    given = flags if isinstance(flags, Iterable) else ()
    for text in map(str, given):
        place_text, equals, value = text.partition("=")
        store, _, field = place_text.rpartition(".")
        if not equals or field not in NamedStoreSettings.model_fields:
            known = ", ".join(NamedStoreSettings.model_fields)
            raise SettingsError(f"flag {STORE_FLAG}: expected NAME.FIELD=VALUE, FIELD one of {known}; found {text!r}")
        tables.setdefault(store, {})[field] = (f"flag {STORE_FLAG}", value)
    for store in tables:
        if not _STORE_NAME.fullmatch(store):
            raise SettingsError(
                f"store {store!r}: its name must begin with a letter and have at most 32 of a-z, 0-9 and hyphens"
            )
    return tables


def _store_variable(variable: str) -> tuple[str, str] | None:
    """Store and field that an environment variable is about; a hyphen of the name is an underscore there."""
    for field in NamedStoreSettings.model_fields:
        suffix = f"_{field.upper()}"
        if variable.startswith(STORE_ENV_PREFIX) and variable.endswith(suffix):
            # `..._PATH_STYLE` does not end in `_PATH`, and no field's name ends in another's.
            store = variable[len(STORE_ENV_PREFIX) : -len(suffix)].lower().replace("_", "-")
            return (store, field) if store else None
    return None


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path}: not valid TOML: {error}") from None
    areas = dict(area_models())
    for area, table in content.items():
        if area == STORES and isinstance(table, dict):
            _check_store_tables(path, table)
            continue
        if area in areas and not isinstance(table, dict):
            raise SettingsError(
                f"settings file {path}: {area} is a table of settings: expected a line [{area}] and the settings below "
                f"it, found a value"
            )
        if area not in areas:
            raise SettingsError(
                f"settings file {path}: unknown table [{area}]; known are {', '.join([*areas, STORES])}"
            )
        for name in table:
            if name not in areas[area].model_fields:
                known = ", ".join(areas[area].model_fields)
                raise SettingsError(f"settings file {path}: unknown setting {area}.{name}; [{area}] has {known}")
    return content


def _check_store_tables(path: Path, tables: Mapping[str, object]) -> None:
    known = ", ".join(NamedStoreSettings.model_fields)
    for store, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError(f"settings file {path}: expected a table [{STORES}.{store}] with {known}")
        for name in table:
            if name not in NamedStoreSettings.model_fields:
                raise SettingsError(
                    f"settings file {path}: unknown setting {STORES}.{store}.{name}; [{STORES}.{store}] has {known}"
                )


def _one_line(error: ValidationError, origins: Mapping[tuple[str, ...], tuple[str, object]]) -> str:
    first = error.errors()[0]
    place = tuple(map(str, first["loc"]))
    allowed = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if place not in origins:
        return f"setting {'.'.join(place)}: {allowed}"
    origin, value = origins[place]
    return f"setting {'.'.join(place)} from {origin}: {str(value)!r} is not allowed: {allowed}"


def _check_endpoint(name: str, endpoint: str) -> None:
    if endpoint and not _ENDPOINT.match(endpoint):
        raise SettingsError(f"setting {name}: expected an address such as http://127.0.0.1:9000, found {endpoint!r}")


def _check_together(settings: Settings) -> None:
    """Rules that no single field can tell."""
    if settings.objects.store == "s3" and not settings.objects.bucket:
        raise SettingsError("setting objects.bucket: empty, but objects.store is 's3', which needs a bucket")
    _check_endpoint("objects.endpoint", settings.objects.endpoint)
    if settings.catalog.url and not _CATALOG_URL.match(settings.catalog.url):
        # What was found is not shown: it may hold a password.
        raise SettingsError("setting catalog.url: expected sqlite:///PATH or postgresql://USER@HOST/DB")
    for name, store in settings.stores.items():
        if name == settings.objects.store:
            raise SettingsError(f"store {name!r}: this is the name of the store that [objects] describes")
        if store.type == "s3" and not store.bucket:
            raise SettingsError(f"setting stores.{name}.bucket: empty, but its type is 's3', which needs a bucket")
        _check_endpoint(f"stores.{name}.endpoint", store.endpoint)
        if store.type == "local" and store.path is None:
            raise SettingsError(f"setting stores.{name}.path: unset, but its type is 'local', which needs a directory")
    group = settings.group
    if group.session_timeout_min_ms > group.session_timeout_max_ms:
        raise SettingsError(
            f"setting group.session_timeout_min_ms: {group.session_timeout_min_ms} is more than "
            f"group.session_timeout_max_ms ({group.session_timeout_max_ms})"
        )
    _check_ports(settings)
    request_max, held_max = settings.network.request_bytes_max, settings.network.node_bytes_max
    if held_max is not None and request_max > held_max:
        raise SettingsError(
            f"setting network.node_bytes_max: {held_max} is less than request_bytes_max ({request_max})"
        )


def _check_ports(settings: Settings) -> None:
    """Kafka clients and the admin port cannot be served at one address."""
    listener, admin = settings.listener, settings.admin
    if not admin.enabled or not admin.port or admin.port != listener.port or not share_port(listener.host, admin.host):
        return
    if listener.host == admin.host:
        raise SettingsError(
            f"setting admin.port: {admin.port} is listener.port, too, at the same address ({admin.host}): give one of "
            "them another"
        )
    raise SettingsError(
        f"setting admin.port: {admin.port} is listener.port, too, and {listener.host} takes in {admin.host}: give one "
        "of them another"
    )


def share_port(host: str, other: str) -> bool:
    """Whether two sockets that listen at these addresses would be in each other's way at one port."""
    hosts = {host, other}
    return (
        len(hosts) == 1
        or "::" in hosts  # takes in the addresses of IPv4, too
        or ("0.0.0.0" in hosts and ":" not in host + other)  # noqa: S104 - compared with, not bound to
        or ("localhost" in hosts and hosts <= _LOOPBACK)
    )


def documentation() -> str:
    """The text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from broker/settings/model.py by `python -m broker.settings.sources`; a test compares. -->",
        "",
        "A setting is looked up in this order: command line flag, environment variable, TOML file (`--config` or",
        f"`{CONFIG_ENV}`), default. Sizes may be written as `512MiB`. A value that is not allowed stops the start with",
        "one line that names the setting, where it was set, the value and what is allowed (exit code 2). So does an",
        f"unknown name, in the file or of a variable that begins with `{ENV_PREFIX}`; the variables that Kubernetes",
        "and Docker make of services' names, such as `ANABRANCH_KAFKA_SERVICE_HOST`, are left alone.",
        "",
        "The TOML file has one table per area:",
        "",
        "```toml",
        "[node]",
        'data_dir = "/var/lib/anabranch"',
        "",
        "[wal]",
        'capacity_bytes = "4GiB"',
        "```",
    ]
    for area, model in area_models():
        lines += ["", f"## {area}", "", str(model.__doc__), ""]
        lines += ["| TOML | flag | environment | default | |", "|---|---|---|---|---|"]
        for name, field in model.model_fields.items():
            setting = Setting(area, name, field)
            text = f"{field.description}{allowed_values(setting)}".replace("|", "\\|")
            default = describe_default(setting)
            lines.append(f"| `{setting.key}` | `{setting.flag}` | `{setting.env}` | {default} | {text} |")
    return "\n".join([*lines, *memory_documentation(), *_stores_documentation()]) + "\n"


def _stores_documentation() -> list[str]:
    lines = [
        "",
        "## stores",
        "",
        "More object stores, each under a name of its own (a letter, then up to 31 of `a-z`, `0-9` and hyphens). A",
        "topic chooses one by its config `storage.policy`; without it, its data goes to the store of `objects`,",
        "whose name is its kind (`local` or `s3`). Objects stay where they were written, so a store stays",
        "configured as long as it holds any: a node does not start when one is missing. Every node of a cluster",
        "has the same stores.",
        "",
        "```toml",
        "[stores.cold]",
        'type = "s3"',
        'bucket = "archive"',
        "```",
        "",
        f"As a flag, `{STORE_FLAG} cold.type=s3 {STORE_FLAG} cold.bucket=archive`; in the environment,",
        f"`{STORE_ENV_PREFIX}COLD_TYPE=s3` (a hyphen of the name is an underscore there).",
        "",
        "A topic is made in it by `anabranch topic create NAME --config storage.policy=cold`; what a topic writes from",
        "now on goes there after `kafka-configs.sh --alter --entity-type topics --entity-name NAME --add-config",
        "storage.policy=cold`. `kafka-topics.sh --create` refuses configs that Apache Kafka does not have.",
        "`anabranch storage ls --topic NAME` shows where each range of a topic lies.",
        "",
        "| TOML | default | |",
        "|---|---|---|",
    ]
    for name, field in NamedStoreSettings.model_fields.items():
        setting = Setting(STORES, name, field)
        default = "required" if field.is_required() else describe_default(setting)
        lines.append(f"| `{STORES}.NAME.{name}` | {default} | {field.description}{allowed_values(setting)} |")
    return lines


def allowed_values(setting: Setting) -> str:
    """A sentence with the values of a setting that takes one of a few, else an empty text."""
    annotation = setting.field.annotation
    if get_origin(annotation) is not Literal:
        return ""
    return " One of " + ", ".join(f"`{value}`" for value in get_args(annotation)) + "."


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "docs" / "configuration.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(documentation(), encoding="utf-8")
