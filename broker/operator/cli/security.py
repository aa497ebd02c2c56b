"""`anabranch security ...`: a secure node for a trial, a check of certificates, and new secrets of clusters."""

import datetime as dt
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from anabranch.broker.kafka.sasl.credentials import SCRAM
from anabranch.broker.kafka.sasl.scram import ITERATIONS_MIN, make_credential, salt_of, salted_password
from anabranch.broker.node.net.tls import TlsError
from anabranch.broker.node.net.tls import load as load_tls
from anabranch.broker.node.peers.handshake import SECRET_BYTES
from anabranch.broker.node.settings.mechanisms import SCRAM_SHA_512
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.sources import load
from anabranch.broker.operator.cli.catalog_access import in_catalog, on_catalog
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsGroup, config_option, read_settings
from anabranch.broker.operator.cli.security_files import Names, TrialOptions, write_trial
from anabranch.output import emit, output_option
from anabranch.s3stream.catalog.catalog import Catalog

ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
SEED_BYTES: Final = 32
PASSWORD_BYTES: Final = 24
DAY_MS: Final = 86_400_000


@click.group(cls=SettingsGroup)
def security() -> None:
    """Set up a secure node for a trial, check the certificates of a node, and replace the secret of a cluster."""


@security.command(short_help="Make certificates, settings and a first user.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--name", "names", multiple=True, metavar="HOST",
    help="Name or address that clients connect to; repeatable. The first one is announced to them  "
    "[default: localhost, 127.0.0.1 and the name of this machine]",
)  # fmt: skip
@click.option("--listen", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=9094, show_default=True, help="Port of the listener SASL_SSL."
)
@click.option(
    "--ssl-port", type=click.IntRange(1, 65535), default=9093, show_default=True,
    help="Port of the listener SSL, which exists if there are client certificates.",
)  # fmt: skip
@click.option("--admin-port", type=click.IntRange(1, 65535), default=9644, show_default=True, help="Admin port.")
@click.option("--user", "user", default="admin", show_default=True, metavar="NAME", help="Name of the super user.")
@click.option(
    "--client", "clients", multiple=True, metavar="NAME", help="Make a certificate for this client, too; repeatable."
)
@click.option(
    "--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Time that certificates are valid."
)
@output_option
def init(
    *,
    directory: Path,
    names: Sequence[str],
    listen: str,
    port: int,
    ssl_port: int,
    admin_port: int,
    user: str,
    clients: Sequence[str],
    days: int,
    output: str,
) -> None:
    """Make an authority, a certificate, settings, tokens and a user with a random password in the new DIRECTORY.

    It is for trials: the key of the authority is beside those of the node.
    """
    for name in (user, *clients):
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise click.BadParameter(
                f"expected letters, digits, - and _, found {name!r}", param_hint="--user, --client"
            )
    if user in clients or len(set(clients)) < len(clients):
        raise click.BadParameter("each name may be given once", param_hint="--client")
    target = directory.absolute()
    if target.exists():
        raise click.ClickException(f"{directory} exists already: nothing was changed. Name a new directory")
    options = TrialOptions(target, _names(names, listen), listen, port, ssl_port, admin_port, user, clients, days)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            password = secrets.token_urlsafe(PASSWORD_BYTES)
            written = write_trial(made, options, password)
            _add_user(made / "node.toml", made / "data", user, password)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise click.ClickException(f"{directory}: {error.strerror or error}") from None
    data = {"directory": str(target), "files": [{"name": name, "about": about} for name, about in written]}
    emit(output, data, "\n".join(_report(target, written, options)))


@security.command(short_help="Show until when the node's certificates are valid.")
@config_option
@output_option
def check(config_file: Path | None, output: str) -> None:
    """Read the node's certificates and keys as the node does, and show until when they are valid.

    The exit code is 1 if files cannot be used.
    """
    settings = read_settings(config_file)
    now_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    areas = {"listeners": settings.ssl if settings.ssl.certificate_file else None, "admin port": settings.admin.ssl}
    rows: list[dict[str, Any]] = []
    lines = []
    for name, area in areas.items():
        row: dict[str, Any] = {"used_by": name, "tls": area is not None, "subject": None, "expires_ms": None}
        row |= {"days_left": None, "error": None}
        rows.append(row)
        if area is None:
            lines.append(f"{name}: no TLS")
            continue
        try:
            found = load_tls(area, now_ms)
        except TlsError as error:
            row["error"] = str(error)
            lines.append(f"{name}: {error}")
            continue
        until = dt.datetime.fromtimestamp(found.expires_ms / 1000, dt.UTC)
        days = (found.expires_ms - now_ms) // DAY_MS
        row |= {"subject": found.subject, "expires_ms": found.expires_ms, "days_left": days}
        lines.append(f"{name}: {found.subject}, valid until {until:%Y-%m-%d} ({days} days)")
    emit(output, rows, "\n".join(lines))
    if any(row["error"] is not None for row in rows):
        raise click.exceptions.Exit(1)


def _names(names: Sequence[str], listen: str) -> Names:
    """Return the names of the certificate; the first one is announced."""
    if names:
        return Names(tuple(dict.fromkeys((*names, "localhost", "127.0.0.1"))))
    machine = socket.gethostname()
    # The name of the machine is announced only where it is needed: it may resolve to nothing.
    first = machine if listen in ANY else listen
    return Names(tuple(dict.fromkeys((first, "localhost", "127.0.0.1", machine))))


def _add_user(settings_file: Path, data: Path, user: str, password: str) -> None:
    """Put the user into the new catalog. The directory will have another name, so it is given here."""
    data.mkdir(mode=0o700)
    settings = load({"node.data_dir": data}, {}, settings_file)
    salt = salt_of(secrets.token_bytes(SEED_BYTES))
    salted = salted_password(SCRAM_SHA_512, password, salt, ITERATIONS_MIN)
    entry = make_credential(SCRAM_SHA_512, salted, salt, ITERATIONS_MIN).to_text()

    async def act() -> None:
        catalog = Catalog(settings.catalog_url)
        try:
            await catalog.open(cluster=settings.node.cluster)
            await catalog.alter_config(SCRAM, user, set_configs={SCRAM_SHA_512: entry}, unset=[])
        finally:
            await catalog.close()

    run(act())


def _report(target: Path, written: Sequence[tuple[str, str]], options: TrialOptions) -> Iterator[str]:
    shown = os.path.relpath(target) if target.is_relative_to(Path.cwd()) else str(target)
    yield f"made in {shown}:"
    for name, about in written:
        yield f"  {name:<{max(len(each) for each, _ in written)}}  {about}"
    yield "next:"
    yield f"  anabranch serve --config {shown}/node.toml"
    yield f"  anabranch topic create orders --command-config {shown}/{options.user}.properties"
    yield f"  anabranch user create alice --command-config {shown}/{options.user}.properties"


@security.command(short_help="Replace the secret that the nodes of a cluster share.")
@output_option
@in_catalog
def rotate_secret(settings: Settings, output: str) -> None:
    """Draw another secret for the nodes of the cluster, which prove to each other that they know it.

    Nodes that run follow within a second, and connect to each other anew. Clients notice nothing.
    """
    run(on_catalog(settings, lambda catalog: catalog.replace_secret(secrets.token_bytes(SECRET_BYTES))))
    data = {"cluster": settings.node.cluster, "replaced": True}
    emit(output, data, "the cluster has a new secret; its nodes use it within a second")
