"""Where settings come from: flags, then environment, then a TOML file, then defaults; the first that names one wins.

A value that is not allowed ends in one `SettingsError` line naming the setting, where it was set, the value found and
what is allowed.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from broker.settings import Area, Settings

ENV_PREFIX = "ANABRANCH_"
CONFIG_ENV = "ANABRANCH_CONFIG"
_PLAIN_AREAS = {"node", "listener"}


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
    """Each area's name and model, in order."""
    for name, field in Settings.model_fields.items():
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
    """Build the settings. `flags` maps keys such as `wal.capacity_bytes` to what was given; raises SettingsError."""
    environment = os.environ if environment is None else environment
    if config_file is None and environment.get(CONFIG_ENV):
        config_file = Path(environment[CONFIG_ENV])
    from_file = _read_file(config_file) if config_file is not None else {}
    values: dict[str, dict[str, object]] = {}
    origins: dict[tuple[str, str], tuple[str, object]] = {}
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
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_one_line(error, origins)) from None
    _check_together(settings)
    return settings


def unknown_environment(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that name no setting: likely a slip of the pen, worth a warning."""
    known = {setting.env for setting in all_settings()} | {CONFIG_ENV, ENV_PREFIX + "CACHE"}
    return sorted(name for name in environment if name.startswith(ENV_PREFIX) and name not in known)


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path}: not valid TOML: {error}") from None
    areas = dict(area_models())
    for area, table in content.items():
        if area not in areas or not isinstance(table, dict):
            raise SettingsError(f"settings file {path}: unknown table [{area}]; known are {', '.join(areas)}")
        for name in table:
            if name not in areas[area].model_fields:
                known = ", ".join(areas[area].model_fields)
                raise SettingsError(f"settings file {path}: unknown setting {area}.{name}; [{area}] has {known}")
    return content


def _one_line(error: ValidationError, origins: Mapping[tuple[str, str], tuple[str, object]]) -> str:
    first = error.errors()[0]
    area, name = str(first["loc"][0]), str(first["loc"][1])
    origin, value = origins[area, name]
    allowed = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"setting {area}.{name} from {origin}: {str(value)!r} is not allowed: {allowed}"


def _check_together(settings: Settings) -> None:
    """Rules that no single field can tell."""
    if settings.objects.store == "s3" and not settings.objects.bucket:
        raise SettingsError("setting objects.bucket: empty, but objects.store is 's3', which needs a bucket")
    group = settings.group
    if group.session_timeout_min_ms > group.session_timeout_max_ms:
        raise SettingsError(
            f"setting group.session_timeout_min_ms: {group.session_timeout_min_ms} is more than "
            f"group.session_timeout_max_ms ({group.session_timeout_max_ms})"
        )
    request_max, held_max = settings.network.request_bytes_max, settings.network.node_bytes_max
    if request_max > held_max:
        raise SettingsError(
            f"setting network.node_bytes_max: {held_max} is less than request_bytes_max ({request_max})"
        )


def documentation() -> str:
    """The text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from broker/settings.py by `python -m broker.settings_sources`; a test keeps it true. -->",
        "",
        "A setting is looked up in this order: command line flag, environment variable, TOML file (`--config` or",
        f"`{CONFIG_ENV}`), default. Sizes may be written as `512MiB`. A value that is not allowed stops the start with",
        "one line that names the setting, where it was set, the value and what is allowed (exit code 2).",
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
    return "\n".join(lines) + "\n"


def allowed_values(setting: Setting) -> str:
    """A sentence with the values of a setting that takes one of a few, else an empty text."""
    annotation = setting.field.annotation
    if get_origin(annotation) is not Literal:
        return ""
    return " One of " + ", ".join(f"`{value}`" for value in get_args(annotation)) + "."


if __name__ == "__main__":
    target = Path(__file__).parent.parent / "docs" / "configuration.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(documentation(), encoding="utf-8")
