"""Profiles: named values of the options that find a cluster, in one file of the user's configuration folder.

    current = "staging"

    [profiles.staging]
    bootstrap_server = "kafka-1.example.com:9094"
    command_config = "/home/alice/staging.properties"
    command_property = { "ssl.ca.location" = "/etc/ssl/staging.pem" }
    admin = "https://kafka-1.example.com:9644"
    admin_token_file = "/home/alice/staging.token"

Keys are the names of the options. A profile holds no secret: it names the files that do.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import click

from anabranch.broker.node.settings.known import PROFILE_ENV

FILE: Final = "profiles.toml"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

profile_option: Final = click.option(
    "--profile",
    "profile_name",
    metavar="NAME",
    envvar=PROFILE_ENV,
    help=f"Profile with values of these options  [default: that of {PROFILE_ENV}, else the one in use]",
)


class BadProfiles(click.UsageError):
    """The file of profiles is invalid, or has no such profile."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Values of options. Empty: not set."""

    bootstrap_server: str = ""
    command_config: str = ""
    command_property: Mapping[str, str] = field(default_factory=dict)
    admin: str = ""
    admin_token_file: str = ""
    admin_ca_file: str = ""
    admin_certificate_file: str = ""

    @property
    def missing(self) -> str:
        """Name of the address that a login or a token of it is for, if it lacks that; otherwise empty."""
        of_admin = any((self.admin_token_file, self.admin_ca_file, self.admin_certificate_file))
        if of_admin and not (self.admin or self.bootstrap_server):
            return "admin"
        if not self.bootstrap_server and any((self.command_config, self.command_property)):
            return "bootstrap_server"
        return ""

    def values(self) -> Mapping[str, Any]:
        """Return what is set, by the names of the options."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name))}


NO_PROFILE: Final = Profile()


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles, by name. `current` is the one in use; empty: none."""

    current: str
    by_name: Mapping[str, Profile]

    def find(self, name: str) -> Profile:
        """Return a profile. Raises BadProfiles."""
        if name not in self.by_name:
            known = f"known are {', '.join(sorted(self.by_name))}" if self.by_name else "there are none"
            raise BadProfiles(f"profile {name!r} does not exist; {known}")
        return self.by_name[name]


def chosen_profile(name: str | None) -> Profile:
    """Return the profile of the option, else the one in use, else an empty one. Raises BadProfiles."""
    profiles = read_profiles()
    wanted = name or profiles.current
    return profiles.find(wanted) if wanted else NO_PROFILE


def profiles_file() -> Path:
    """Return the path of the file, which may not exist yet."""
    return Path(click.get_app_dir("anabranch")) / FILE


def read_profiles() -> Profiles:
    """Read the file. Raises BadProfiles."""
    path = profiles_file()
    if not path.exists():
        return Profiles("", {})
    import tomllib  # late: many have no profiles

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadProfiles(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadProfiles(f"{path}: not valid TOML: {error}") from None
    current, tables = found.get("current", ""), found.get("profiles", {})
    if not isinstance(current, str) or not isinstance(tables, dict):
        raise BadProfiles(f"{path}: expected current = NAME, and tables [profiles.NAME]")
    return Profiles(current, {name: _profile(f"{path}: profile {name!r}", table) for name, table in tables.items()})


def _profile(where: str, table: object) -> Profile:
    """Return the profile of a table. Raises BadProfiles."""
    if not isinstance(table, dict):
        raise BadProfiles(f"{where}: expected a table")
    known = {each.name for each in fields(Profile)}
    for name, value in table.items():
        if name not in known:
            raise BadProfiles(f"{where}: unknown {name!r}; known are {', '.join(sorted(known))}")
        kind, texts = "a text", [value]
        if name == "command_property":
            kind, texts = "a table of texts", list(value.values()) if isinstance(value, dict) else [None]
        if not all(isinstance(each, str) for each in texts):
            raise BadProfiles(f"{where}: {name} must be {kind}")
    found = Profile(**table)
    if found.missing:
        raise BadProfiles(f"{where}: it lacks {found.missing}, for which its other values are")
    return found


def write_profiles(profiles: Profiles) -> None:
    """Replace the file. Raises ClickException."""
    path = profiles_file()
    lines = [f"current = {json.dumps(profiles.current)}"] if profiles.current else []
    for name, profile in sorted(profiles.by_name.items()):
        lines += ["", f"[profiles.{json.dumps(name)}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in profile.values().items()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{FILE}.{os.getpid()}")
        new.touch(mode=0o600)  # addresses and users are nobody else's business
        new.write_text("\n".join(lines).lstrip("\n") + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None


def _toml(value: str | Mapping[str, str]) -> str:
    """Return printable texts in TOML, whose strings have the escapes of JSON."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "{ " + ", ".join(f"{_toml(name)} = {_toml(each)}" for name, each in value.items()) + " }"


def check_profile(name: str, profile: Profile) -> None:
    """Raise BadParameter for a name or a value that the file cannot hold."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter("a profile has up to 64 letters, digits, `.`, `_` and `-` as name", param_hint="NAME")
    for option, value in profile.values().items():
        texts = [value] if isinstance(value, str) else [*value, *value.values()]
        if not all(text.isprintable() for text in texts):
            raise click.BadParameter(
                "it has characters that cannot be printed", param_hint=f"--{option.replace('_', '-')}"
            )
    if profile.missing:
        option = profile.missing.replace("_", "-")
        raise click.UsageError(f"name the address that the profile's login or token is for: --{option}")
