"""`anabranch user ...`: users of SASL/SCRAM, and hashes of passwords for SASL/PLAIN.

A password is typed, or comes from a file or the environment, never from the command line: others could read it there.
It does not leave the command: a cluster receives it salted.
"""

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.kafka.sasl.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN
from anabranch.broker.kafka.sasl.user_requests import SEED_BYTES, UserNameError, check_user_name, salt_password
from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.questions import confirm
from anabranch.broker.operator.cli.user_source import Users, on_users
from anabranch.output import emit, make_table, output_option, plain

PASSWORD_ENV: Final = "ANABRANCH_USER_PASSWORD"  # noqa: S105 - a name


@click.group()
def user() -> None:
    """List, create and delete users that authenticate themselves with SASL, and change their passwords.

    Commands ask a running cluster, like other Kafka clients. With --config, --data-dir or --catalog-url they read and
    write its catalog instead, also while no node runs: so the first user is created.
    """


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


def _mechanisms_option(without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--mechanism",
        "mechanisms",
        type=click.Choice(list(HASHES), case_sensitive=False),
        multiple=True,
        help=f"Mechanism; repeatable. Without it: {without}.",
    )


def _iterations_option(without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--iterations",
        type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
        help=f"Iterations of the hash that protects the password. Without it: {without}.",
    )


@user.command(name="list", short_help="List the users.")
@output_option
@on_users
def list_(users: Users, output: str) -> None:
    """List the users of SASL/SCRAM with their mechanisms. Passwords cannot be shown: nodes do not know them."""
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, credentials in users.find().items()
        for mechanism, iterations in credentials.items()
    ]

    def show(console: Console) -> None:
        table = make_table("user", "mechanism", "iterations")
        for row in rows:
            iterations = "damaged" if row["iterations"] is None else str(row["iterations"])
            table.add_row(plain(str(row["user"])), plain(str(row["mechanism"])), iterations)
        console.print(table if rows else "there are no users")

    emit(output, rows, show)


@user.command(short_help="Create a user.")
@click.argument("name")
@_mechanisms_option("all")
@_iterations_option(str(ITERATIONS_MIN))
@_with_password
@output_option
@on_users
def create(
    users: Users, name: str, *, mechanisms: Sequence[str], iterations: int | None, password: str, output: str
) -> None:
    """Create the user NAME with credentials for SASL/SCRAM. What it may do, `anabranch acl` says."""
    try:
        check_user_name(name)
    except UserNameError as error:
        raise click.ClickException(str(error)) from None
    if users.find(name):
        raise click.ClickException(f"user {name} exists: `user passwd` changes its password")
    _put(users, name, dict.fromkeys(mechanisms or HASHES, iterations), password, output)


@user.command(short_help="Change the password of a user.")
@click.argument("name")
@_mechanisms_option("those that the user has")
@_iterations_option(f"those of the credential, or {ITERATIONS_MIN} for a new one")
@_with_password
@output_option
@on_users
def passwd(
    users: Users, name: str, *, mechanisms: Sequence[str], iterations: int | None, password: str, output: str
) -> None:
    """Change the password of the user NAME. Each mechanism has a password of its own.

    Nodes accept the new password within a second. Connections that are open stay open.
    """
    found = users.find(name).get(name)
    if found is None:
        raise click.ClickException(f"user {name} does not exist: `user create` creates it")
    _put(users, name, {each: iterations or found.get(each) for each in mechanisms or found}, password, output)


def _put(users: Users, name: str, credentials: Mapping[str, int | None], password: str, output: str) -> None:
    """Set the password of each mechanism, with its iterations; None: the default."""
    iterations = {mechanism: count or ITERATIONS_MIN for mechanism, count in credentials.items()}
    users.put(
        name,
        [salt_password(each, password, count, secrets.token_bytes(SEED_BYTES)) for each, count in iterations.items()],
    )
    rows = [{"mechanism": mechanism, "iterations": count} for mechanism, count in iterations.items()]
    data = {"user": name, "credentials": rows}
    emit(output, data, f"user {name} can authenticate with {' and '.join(iterations)}")


@user.command(short_help="Delete a user.")
@click.argument("name")
@_mechanisms_option("all that the user has")
@yes_option
@output_option
@on_users
def delete(users: Users, name: str, *, mechanisms: Sequence[str], yes: bool, output: str) -> None:
    """Delete the credentials of the user NAME, and with the last one its delegation tokens.

    Connections that are open stay open. ACLs of the user stay, too.
    """
    found = users.find(name).get(name, {})
    chosen = [each for each in dict.fromkeys(mechanisms or found) if each in found]
    if not chosen:
        raise click.ClickException(f"user {name} does not exist, or has no such mechanism")
    if not yes:
        confirm(f"Delete the credentials of user {name} for {' and '.join(chosen)}?")
    users.remove(name, chosen)
    data = {"user": name, "removed": chosen}
    emit(output, data, f"user {name} can no longer authenticate with {' and '.join(chosen)}")


@user.command(name="hash", short_help="Print the line of a user for the file of SASL/PLAIN.")
@click.argument("name")
@_with_password
@output_option
def hash_(name: str, password: str, output: str) -> None:
    """Print a line with the user NAME and the hash of the password, for the file `sasl.plain_users_file`."""
    # Imported late: users of SCRAM do not need it.
    from anabranch.broker.kafka.sasl.plain import SALT_BYTES, hash_password

    if not name or ":$" in name or not name.isprintable() or name.startswith("#"):
        raise click.ClickException("the name must be printable, without `:$`, and must not begin with `#`")
    line = f"{name}:{hash_password(password, secrets.token_bytes(SALT_BYTES)).to_text()}"
    emit(output, {"user": name, "line": line}, line)
