"""`anabranch user ...`: users of SASL/SCRAM in the catalog, and hashes of passwords for SASL/PLAIN.

The commands write to the catalog, so that they work while nodes run, which follow within a second, and while none does.
A password is typed, or comes from a file or the environment, never from the command line: others could read it there.
"""

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.kafka.sasl.credentials import SCRAM
from anabranch.broker.kafka.sasl.delegation_tokens import USER
from anabranch.broker.kafka.sasl.plain import SALT_BYTES, hash_password
from anabranch.broker.kafka.sasl.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    CredentialError,
    make_credential,
    parse_credential,
    salt_of,
    salted_password,
)
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.catalog_access import in_catalog, on_catalog
from anabranch.broker.operator.cli.errors import run
from anabranch.output import emit, make_table, output_option, plain
from anabranch.s3stream.catalog.catalog import Catalog

PASSWORD_ENV: Final = "ANABRANCH_USER_PASSWORD"  # noqa: S105 - a name
SEED_BYTES: Final = 32


@click.group()
def user() -> None:
    """Add, list and remove users that authenticate themselves with SASL."""


def _with_password(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for the file of the password; the command receives the password."""

    def wrapped(*positional: Any, password_file: Any, **arguments: Any) -> None:
        command(*positional, password=_password(password_file), **arguments)

    file = click.option(
        "--password-file",
        type=click.File("r", encoding="utf-8"),
        metavar="FILE",
        help=f"File whose first line is the password; `-`: standard input. Without it: the environment variable "
        f"{PASSWORD_ENV}, or a question.",
    )
    return file(update_wrapper(wrapped, command))


def _password(file: Any) -> str:
    if file is not None:
        try:
            password = str(file.readline()).rstrip("\r\n")
        except UnicodeDecodeError:
            raise click.ClickException("the password is not UTF-8") from None
    elif PASSWORD_ENV in os.environ:
        password = os.environ[PASSWORD_ENV]
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise click.UsageError(f"no password: give --password-file, or set {PASSWORD_ENV}")
    if not password:
        raise click.ClickException("the password is empty")
    return password


_mechanisms_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(HASHES), case_sensitive=False),
    multiple=True,
    help="Mechanism; repeatable. Without it: all.",
)


@user.command(short_help="Add a user, or change a password.")
@click.argument("name")
@_mechanisms_option
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="Iterations of the hash that protects the password.",
)
@_with_password
@output_option
@in_catalog
def add(
    settings: Settings, name: str, *, mechanisms: Sequence[str], iterations: int, password: str, output: str
) -> None:
    """Set the credentials of the user NAME for SASL/SCRAM, replacing older ones.

    Nodes accept the new password within a second. Connections that are open stay open.
    """
    _check_name(name)
    entries = {}
    for mechanism in mechanisms or HASHES:
        salt = salt_of(secrets.token_bytes(SEED_BYTES))
        salted = salted_password(mechanism, password, salt, iterations)
        entries[mechanism] = make_credential(mechanism, salted, salt, iterations).to_text()
    run(on_catalog(settings, lambda catalog: catalog.alter_config(SCRAM, name, set_configs=entries, unset=[])))
    data = {"user": name, "mechanisms": list(entries), "iterations": iterations}
    emit(output, data, f"user {name} can authenticate with {' and '.join(entries)}")


@user.command(name="list", short_help="List the users.")
@output_option
@in_catalog
def list_(settings: Settings, output: str) -> None:
    """List the users of SASL/SCRAM with their mechanisms. Passwords cannot be shown: nodes do not know them."""
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": _iterations(entry)}
        for (kind, name), entries in sorted(run(_read(settings)).items())
        if kind == SCRAM
        for mechanism, entry in sorted(entries.items())
    ]

    def show(console: Console) -> None:
        table = make_table("user", "mechanism", "iterations")
        for row in rows:
            iterations = "damaged" if row["iterations"] is None else str(row["iterations"])
            table.add_row(plain(str(row["user"])), plain(str(row["mechanism"])), iterations)
        console.print(table if rows else "there are no users")

    emit(output, rows, show)


def _iterations(entry: str) -> int | None:
    """Return the iterations of a credential; None if it is damaged."""
    try:
        return parse_credential(entry).iterations
    except CredentialError:
        return None


@user.command(short_help="Remove a user.")
@click.argument("name")
@_mechanisms_option
@output_option
@in_catalog
def remove(settings: Settings, name: str, mechanisms: Sequence[str], output: str) -> None:
    """Remove the credentials of the user NAME, and with the last one its delegation tokens.

    Connections that are open stay open.
    """

    async def act(catalog: Catalog) -> Sequence[str]:
        found = (await catalog.list_configs()).get((SCRAM, name), {})
        unset = [each for each in mechanisms or HASHES if each in found]
        if unset:
            await catalog.alter_config(SCRAM, name, set_configs={}, unset=unset, token_owner=f"{USER}{name}")
        return unset

    removed = run(on_catalog(settings, act))
    if not removed:
        raise click.ClickException(f"user {name} does not exist, or has no such mechanism")
    data = {"user": name, "removed": removed}
    emit(output, data, f"user {name} can no longer authenticate with {' and '.join(removed)}")


@user.command(name="hash", short_help="Print the line of a user for the file of SASL/PLAIN.")
@click.argument("name")
@_with_password
@output_option
def hash_(name: str, password: str, output: str) -> None:
    """Print a line with the user NAME and the hash of the password, for the file `sasl.plain_users_file`."""
    if not name or ":$" in name or not name.isprintable() or name.startswith("#"):
        raise click.ClickException("the name must be printable, without `:$`, and must not begin with `#`")
    line = f"{name}:{hash_password(password, secrets.token_bytes(SALT_BYTES)).to_text()}"
    emit(output, {"user": name, "line": line}, line)


def _check_name(name: str) -> None:
    """Raise ClickException for a name that no client could send."""
    if not name or not name.isascii() or "\0" in name:
        raise click.ClickException("the name of a SCRAM user must consist of ASCII characters, as in Apache Kafka")


async def _read(settings: Settings) -> Mapping[tuple[str, str], Mapping[str, str]]:
    return await on_catalog(settings, lambda catalog: catalog.list_configs(), read_only=True)
