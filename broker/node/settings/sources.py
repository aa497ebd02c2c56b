"""Sources of settings, by precedence: flags, environment, TOML file, defaults.

An invalid value raises a `SettingsError` of one line: the setting, its source, the value found, and the allowed values.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from anabranch.broker.node.settings.area import InvalidSetting, definitions
from anabranch.broker.node.settings.checks import check_together
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.known import CONFIG_ENV, ENV_PREFIX, PROFILE_ENV
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.names import (
    NAMED_AREAS,
    NamedArea,
    all_settings,
    area_models,
)
from anabranch.native import VARIABLE as NATIVE_ENV

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_TOOLS: Final = frozenset(
    ENV_PREFIX + name
    for name in (
        "CACHE",
        "PROPERTY_EXAMPLES",
        "REQUIRE_TOOLS",
        "SOAK",
        "SUITE_SOURCES",
        "USER_PASSWORD",
        "WAL_HISTORIES",
        "WAL_SEED",
    )
)
"""Variables of the project's own commands, tools and tests. They are not settings, and not misspelt ones."""
_SERVICE_LINK: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


def load(
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> Settings:
    """Build the settings from all sources. Raises SettingsError.

    `flags` maps keys such as `wal.capacity_bytes` to values, and those of named areas, such as `stores`, to texts of
    the form `NAME.FIELD=VALUE`.
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
            origins[setting.area, setting.name] = (found[0], "[hidden]") if setting.is_secret else found
            values.setdefault(setting.area, {})[setting.name] = found[1]
    for area in NAMED_AREAS:
        tables = _named_tables(area, from_file.get(area.key, {}), environment, (flags or {}).get(area.key), config_file)
        for name, fields in tables.items():
            values.setdefault(area.key, {})[name] = {field: value for field, (_, value) in fields.items()}
            for field, (origin, value) in fields.items():
                is_secret = field in definitions(area.model) and definitions(area.model)[field].is_secret
                origins[area.key, name, field] = (origin, "[hidden]" if is_secret else value)
    try:
        settings = Settings.of(values)
    except InvalidSetting as error:
        raise SettingsError(_one_line(error, origins)) from None
    check_together(settings)
    return settings


def unknown_environment(environment: Mapping[str, str]) -> list[str]:
    """Return the variables with our prefix that name no setting.

    Variables of the project's own tools are left out. So are those that Kubernetes and Docker derive from the names of
    services, which may have the same prefix.
    """
    known = {setting.env for setting in all_settings()} | {CONFIG_ENV, PROFILE_ENV, NATIVE_ENV} | _TOOLS
    return sorted(
        name
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX)
        and name not in known
        and all(_named_variable(area, name) is None for area in NAMED_AREAS)
        and not _is_service_link(name, value)
    )


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.search(name)) or (name.endswith("_PORT") and bool(_SERVICE_ADDRESS.match(value)))


def _check_environment(environment: Mapping[str, str]) -> None:
    """Raise SettingsError for the first variable with our prefix that names no setting: it is probably misspelt."""
    for name in unknown_environment(environment):
        # Some have a shorter name than that of the setting, which one may have tried: listener.port is ANABRANCH_PORT.
        settings = {setting.env.removeprefix(ENV_PREFIX): setting.env for setting in all_settings()}
        settings |= {f"{setting.area}_{setting.name}".upper(): setting.env for setting in all_settings()}
        from difflib import get_close_matches  # late: names are rarely wrong

        near = get_close_matches(name.removeprefix(ENV_PREFIX), settings, n=1)
        advice = f"; the nearest is {settings[near[0]]}" if near else " (see `anabranch serve --help`)"
        raise SettingsError(f"environment variable {name}: no setting has this name{advice}")


def _named_tables(
    area: NamedArea,
    from_file: Mapping[str, Mapping[str, object]],
    environment: Mapping[str, str],
    flags: object,
    config_file: Path | None,
) -> dict[str, dict[str, tuple[str, object]]]:
    """Return source and value of each field of the tables of a named area, by name and field."""
    tables: dict[str, dict[str, tuple[str, object]]] = {}
    for name, table in from_file.items():
        tables.setdefault(name, {}).update({field: (f"{config_file}", value) for field, value in table.items()})
    for variable, text in environment.items():
        place = _named_variable(area, variable)
        if place is not None:
            tables.setdefault(place[0], {})[place[1]] = (f"environment variable {variable}", text)
    given = flags if isinstance(flags, Iterable) else ()
    for text in map(str, given):
        place_text, equals, value = text.partition("=")
        name, _, field = place_text.rpartition(".")
        if not equals or field not in area.flag_fields:
            known = ", ".join(area.flag_fields)
            shown = repr(place_text if equals else text)
            raise SettingsError(f"flag {area.flag}: expected NAME.FIELD=VALUE, FIELD one of {known}; found {shown}")
        tables.setdefault(name, {})[field] = (f"flag {area.flag}", value)
    for name in tables:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{area.noun} {name!r}: its name must begin with a letter and have at most 32 of a-z, 0-9 and hyphens"
            )
    return tables


def _named_variable(area: NamedArea, variable: str) -> tuple[str, str] | None:
    """Return the name and field that an environment variable sets. Hyphens of the name are underscores there."""
    if not variable.startswith(area.env_prefix):
        return None
    # `..._OAUTH2_SERVER_URI` ends in `_URI`, too: the longest field is meant.
    for field in sorted(definitions(area.model), key=len, reverse=True):
        suffix = f"_{field.upper()}"
        if variable.endswith(suffix):
            name = variable[len(area.env_prefix) : -len(suffix)].lower().replace("_", "-")
            return (name, field) if name else None
    return None


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    import tomllib  # late: many have no file

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path}: not valid TOML: {error}") from None
    except RecursionError:
        raise SettingsError(f"settings file {path}: values are nested too deeply") from None
    areas, named = dict(area_models()), {each.key: each for each in NAMED_AREAS}
    for area, table in content.items():
        if area in named and isinstance(table, dict):
            _check_named_tables(path, named[area], table)
            continue
        if area in areas and not isinstance(table, dict):
            raise SettingsError(
                f"settings file {path}: {area} is a table of settings: expected a line [{area}] and the settings below "
                f"it, found a value"
            )
        if area not in areas:
            raise SettingsError(
                f"settings file {path}: unknown table [{_shown(area)}]; known are {', '.join([*areas, *named])}"
            )
        for name in table:
            if name not in definitions(areas[area]):
                known = ", ".join(definitions(areas[area]))
                raise SettingsError(
                    f"settings file {path}: unknown setting {area}.{_shown(name)}; [{area}] has {known}"
                )
    return content


def _check_named_tables(path: Path, area: NamedArea, tables: Mapping[str, object]) -> None:
    known = ", ".join(definitions(area.model))
    for name, table in tables.items():
        table_name = f"{area.key}.{_shown(name)}"
        if not isinstance(table, dict):
            raise SettingsError(f"settings file {path}: expected a table [{table_name}] with {known}")
        for field in table:
            if field not in definitions(area.model):
                raise SettingsError(
                    f"settings file {path}: unknown setting {table_name}.{_shown(field)}; [{table_name}] has {known}"
                )


def _shown(name: str) -> str:
    """Return a name of the file for a message of one line: with escapes if it has control characters."""
    return name if name.isprintable() else repr(name)


def _one_line(error: InvalidSetting, origins: Mapping[tuple[str, ...], tuple[str, object]]) -> str:
    if error.place not in origins:
        return f"setting {error}"
    origin, value = origins[error.place]
    return f"setting {'.'.join(error.place)} from {origin}: {str(value)!r} is not allowed: {error.allowed}"
