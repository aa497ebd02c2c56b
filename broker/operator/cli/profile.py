"""`anabranch profile ...`: profiles, which name clusters so that commands need no options to find them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from anabranch.broker.operator.cli.admin_address import parse_admin
from anabranch.broker.operator.cli.admin_port import admin_options
from anabranch.broker.operator.cli.client import bootstrap_option, check_servers, parse_properties, property_options
from anabranch.broker.operator.cli.profiles import (
    Profile,
    Profiles,
    check_profile,
    profiles_file,
    read_profiles,
    write_profiles,
)
from anabranch.client.errors import PropertyError
from anabranch.client.settings import gather
from anabranch.output import emit, make_facts, make_table, output_option, plain


@click.group()
def profile() -> None:
    """Create, choose, list, show and delete profiles: named options that find a cluster.

    A command takes each value from its options, else from the environment, else from the profile, else it has its
    default. The profile is that of --profile, of the variable ANABRANCH_PROFILE, or the one in use.
    """


@profile.command(short_help="Create a profile, and use it.")
@click.argument("name")
@bootstrap_option
@property_options
@admin_options
@output_option
def create(
    name: str,
    servers: str | None,
    command_config: Path | None,
    command_properties: Sequence[str],
    *,
    output: str,
    **admin: Any,
) -> None:
    """Create the profile NAME from the options, and use it from now on.

    Files are kept by their paths. Secrets belong into those files, and not into a profile.
    """
    properties = parse_properties(command_properties)
    try:
        gather(None, properties)
    except PropertyError as error:
        raise click.UsageError(str(error)) from None
    if admin["admin"] is not None:
        parse_admin(admin["admin"])
    made = Profile(
        bootstrap_server="" if servers is None else check_servers(servers),
        command_config=_absolute(command_config),
        command_property=properties,
        admin=admin["admin"] or "",
        admin_token_file=_absolute(admin["admin_token_file"]),
        admin_ca_file=_absolute(admin["admin_ca_file"]),
        admin_certificate_file=_absolute(admin["admin_certificate_file"]),
    )
    check_profile(name, made)
    profiles = read_profiles()
    if name in profiles.by_name:
        raise click.ClickException(f"profile {name} exists: delete it first, or edit {profiles_file()}")
    write_profiles(Profiles(name, {**profiles.by_name, name: made}))
    emit(output, _data(name, made, is_current=True), f"created profile {name}, which is in use now")


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


@profile.command()
@click.argument("name")
@output_option
def use(name: str, output: str) -> None:
    """Use the profile NAME from now on, where neither --profile nor ANABRANCH_PROFILE names another."""
    profiles = read_profiles()
    found = profiles.find(name)
    write_profiles(replace(profiles, current=name))
    emit(output, _data(name, found, is_current=True), f"profile {name} is in use now")


@profile.command(name="list")
@output_option
def list_(output: str) -> None:
    """List the profiles, with the one in use."""
    profiles = read_profiles()
    rows = [_data(name, each, is_current=name == profiles.current) for name, each in sorted(profiles.by_name.items())]

    def show(console: Console) -> None:
        table = make_table("", "profile", "bootstrap server", "admin port")
        for row in rows:
            texts = (row["profile"], row["bootstrap_server"] or "-", row["admin"] or "-")
            table.add_row("*" if row["in_use"] else "", *map(plain, texts))
        console.print(table if rows else "there are no profiles")

    emit(output, rows, show)


@profile.command()
@click.argument("name", required=False)
@output_option
def show(name: str | None, output: str) -> None:
    """Show the values of the profile NAME, or of the one in use, and the file in which they can be changed."""
    profiles = read_profiles()
    wanted = name or profiles.current
    if not wanted:
        raise click.ClickException("no profile is in use: name one")
    found = profiles.find(wanted)
    data = {**_data(wanted, found, is_current=wanted == profiles.current), "file": str(profiles_file())}

    def show_facts(console: Console) -> None:
        facts = []
        for key, value in data.items():
            texts = [f"{each}={text}" for each, text in value.items()] if isinstance(value, dict) else [value]
            shown = ", ".join("yes" if each is True else "no" if each is False else str(each or "-") for each in texts)
            facts.append((key.replace("_", " "), plain(shown or "-")))
        console.print(make_facts(facts))

    emit(output, data, show_facts)


@profile.command()
@click.argument("name")
@output_option
def delete(name: str, output: str) -> None:
    """Delete the profile NAME. The files that it names stay."""
    profiles = read_profiles()
    profiles.find(name)
    left = {each: value for each, value in profiles.by_name.items() if each != name}
    write_profiles(Profiles("" if profiles.current == name else profiles.current, left))
    emit(output, {"deleted": [name]}, f"deleted profile {name}")


def _data(name: str, found: Profile, *, is_current: bool) -> Mapping[str, Any]:
    return {
        "profile": name,
        "in_use": is_current,
        "bootstrap_server": found.bootstrap_server or None,
        "command_config": found.command_config or None,
        "properties": dict(found.command_property),
        "admin": found.admin or None,
        "admin_token_file": found.admin_token_file or None,
        "admin_ca_file": found.admin_ca_file or None,
        "admin_certificate_file": found.admin_certificate_file or None,
    }
