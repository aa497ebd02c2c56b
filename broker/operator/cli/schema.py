"""`anabranch schema ...`: the schema registry of a running node, by its REST API at the admin port."""

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import click
from rich.console import Console

from anabranch.broker.kafka.schemas.model import Kind, Level
from anabranch.broker.operator.cli.admin_port import AdminPort, TooLarge, on_node
from anabranch.broker.operator.cli.arguments import parse_pairs, yes_option
from anabranch.broker.operator.cli.questions import confirm
from anabranch.output import emit, make_table, output_option, plain

FORMATS: Final = {".avsc": Kind.AVRO, ".avro": Kind.AVRO, ".json": Kind.JSON, ".proto": Kind.PROTOBUF}
"""Formats of schemas by the ends of files' names."""
PAGE: Final = 1000
"""Versions of subjects that are asked for at once."""


@click.group()
def schema() -> None:
    """List, show, check, register and delete schemas, and set levels of compatibility.

    \b
    anabranch schema check orders-value order.avsc && anabranch schema register orders-value order.avsc
    anabranch schema show orders-value
    anabranch schema level orders-value --set FULL
    """


def _subject_path(subject: str, *steps: str) -> str:
    return "/".join(["/subjects", quote(subject, safe=""), *steps])


@schema.command(name="list", short_help="List subjects.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--deleted", is_flag=True, help="Include what was deleted, but not for good.")
@output_option
@on_node
def list_(node: AdminPort, patterns: Sequence[str], *, deleted: bool, output: str) -> None:
    """List subjects with their newest versions: all, or those that match a PATTERN, such as 'orders-*'."""
    rows: dict[str, dict[str, Any]] = {}
    for each in _all_versions(node, deleted=deleted):
        subject = each["subject"]
        if patterns and not any(fnmatchcase(subject, pattern) for pattern in patterns):
            continue
        earlier = rows[subject]["versions"] if subject in rows else []
        rows[subject] = {**_data(each), "versions": [*earlier, each["version"]]}
    for row in rows.values():
        del row["schema"]

    def show(console: Console) -> None:
        table = make_table("subject", "versions", "newest", "id", "format", right=("versions", "newest", "id"))
        for row in rows.values():
            numbers = (len(row["versions"]), row["version"], row["id"])
            table.add_row(plain(row["subject"]), *map(str, numbers), row["format"])
        console.print(table if rows else "there are no schemas")

    emit(output, list(rows.values()), show)


def _all_versions(node: AdminPort, *, deleted: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the versions of all subjects by number, in pages that are smaller where schemas are large."""
    offset, limit = 0, PAGE
    while True:
        query = urlencode({"offset": offset, "limit": limit, "deleted": str(deleted).lower()})
        try:
            page = node.ask_registry("GET", f"/schemas?{query}")
        except TooLarge:
            if limit == 1:
                raise
            limit //= 2
            continue
        yield from page
        if len(page) < limit:
            return
        offset += limit


@schema.command(name="show", short_help="Show a schema.")
@click.argument("subject", required=False)
@click.option("--version", type=click.IntRange(min=1), metavar="NUMBER", help="Version  [default: the newest]")
@click.option("--id", "schema_id", type=click.IntRange(min=1), metavar="NUMBER", help="Id, instead of a subject.")
@output_option
@on_node
def show_(node: AdminPort, subject: str | None, version: int | None, schema_id: int | None, output: str) -> None:
    """Show the text of a schema: a version of SUBJECT, or the schema with an id."""
    if (subject is None) == (schema_id is None):
        raise click.UsageError("name a SUBJECT, or a schema with --id")
    if subject is None:
        found = {"id": schema_id, **node.ask_registry("GET", f"/schemas/ids/{schema_id}")}
    else:
        found = node.ask_registry("GET", _subject_path(subject, "versions", str(version or "latest")))
    data = _data(found)
    emit(output, data, _indented(data))


def _data(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a version, or a schema, as the registry describes it, by the names of this output."""
    data = {name: found[name] for name in ("subject", "version", "id") if name in found}
    references = [dict(each) for each in found.get("references", ())]
    return {
        **data,
        "format": found.get("schemaType", Kind.AVRO.value),
        **({"references": references} if references else {}),
        "schema": found["schema"],
    }


def _indented(data: Mapping[str, Any]) -> str:
    """Return the text of a schema for people."""
    text: str = data["schema"]
    if data["format"] == Kind.PROTOBUF:
        return text.rstrip("\n")
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False)


def _schema_options(command: Any) -> Any:
    """Add the argument and options that describe a new schema."""
    reference = click.option(
        "--reference",
        "references",
        multiple=True,
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that it refers to by this name; repeatable.",
    )
    kind = click.option(
        "--format",
        "kind",
        type=click.Choice([each.lower() for each in Kind], case_sensitive=False),
        help="Format of the schema  [default: by the end of the file's name: .avsc, .json, .proto]",
    )
    file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
    return click.argument("subject")(file(kind(reference(command))))


def _body(file: Path, kind: str | None, references: Sequence[str]) -> dict[str, Any]:
    """Return a new schema as the registry takes it. Raises UsageError, ClickException."""
    named = kind.upper() if kind else FORMATS.get(file.suffix)
    if named is None:
        raise click.UsageError(f"{file}: the format is not told by the name: give --format")
    try:
        with click.open_file(str(file), encoding="utf-8") as source:
            text = source.read()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    body: dict[str, Any] = {"schema": text, "schemaType": named}
    if references:
        body["references"] = [_reference(name, of) for name, of in parse_pairs(references, "--reference").items()]
    return body


def _reference(name: str, of: str) -> dict[str, Any]:
    subject, _, version = of.rpartition(":")
    if not subject or not version.isdigit():
        raise click.BadParameter(f"expected NAME=SUBJECT:VERSION, found {name}={of}", param_hint="--reference")
    return {"name": name, "subject": subject, "version": int(version)}


@schema.command(short_help="Register a schema.")
@_schema_options
@click.option("--normalize", is_flag=True, help="Register it in its normal form, which spellings have in common.")
@output_option
@on_node
def register(
    node: AdminPort,
    subject: str,
    file: Path,
    kind: str | None,
    references: Sequence[str],
    *,
    normalize: bool,
    output: str,
) -> None:
    """Register the schema in FILE, or `-`, as the next version of SUBJECT, unless it is one already."""
    body = _body(file, kind, references)
    query = "?normalize=true" if normalize else ""
    made = node.ask_registry("POST", _subject_path(subject, "versions") + query, body)
    found = node.ask_registry("POST", _subject_path(subject) + query, body)
    data = {"subject": subject, "version": found["version"], "id": made["id"]}
    emit(output, data, f"{subject}: version {data['version']}, id {data['id']}")


@schema.command(short_help="Check the compatibility of a schema.")
@_schema_options
@click.option(
    "--version",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Version to compare with  [default: those that the level names]",
)
@output_option
@on_node
def check(
    node: AdminPort,
    subject: str,
    file: Path,
    kind: str | None,
    references: Sequence[str],
    version: int | None,
    output: str,
) -> None:
    """Compare the schema in FILE, or `-`, with versions of SUBJECT by its level. Fails if it is not compatible."""
    path = "/compatibility" + _subject_path(subject, "versions", *([str(version)] if version else []))
    found = node.ask_registry("POST", f"{path}?verbose=true", _body(file, kind, references))
    data = {"compatible": found["is_compatible"], "reasons": found.get("messages", [])}

    def show(console: Console) -> None:
        for line in ("compatible" if data["compatible"] else "not compatible", *data["reasons"]):
            console.print(plain(line), soft_wrap=True)

    emit(output, data, show)
    if not data["compatible"]:
        raise click.exceptions.Exit(1)


@schema.command(short_help="Delete a subject, or a version.")
@click.argument("subject")
@click.option("--version", type=click.IntRange(min=1), metavar="NUMBER", help="Only this version.")
@click.option(
    "--permanent", is_flag=True, help="For good: what has been deleted before is forgotten, and its ids unreadable."
)
@yes_option
@output_option
@on_node
def delete(node: AdminPort, subject: str, version: int | None, *, permanent: bool, yes: bool, output: str) -> None:
    """Delete SUBJECT, or one version of it. Its ids stay readable, until it is deleted with --permanent as well."""
    what = f"version {version} of {subject}" if version else f"all versions of {subject}"
    if permanent and not yes:
        confirm(f"forget {what}? Records with ids of theirs cannot be read any more.")
    path = _subject_path(subject, *(["versions", str(version)] if version else []))
    found = node.ask_registry("DELETE", path + ("?permanent=true" if permanent else ""))
    versions = found if isinstance(found, list) else [found]
    data = {"subject": subject, "versions": versions, "permanent": permanent}
    emit(output, data, f"{subject}: deleted {', '.join(map(str, versions))}{' for good' if permanent else ''}")


@schema.command(short_help="Show or set a level of compatibility.")
@click.argument("subject", required=False)
@click.option(
    "--set",
    "level",
    type=click.Choice([each.value for each in Level], case_sensitive=False),
    metavar="LEVEL",
    help="Set it.",
)
@click.option("--unset", is_flag=True, help="Withdraw it: the subject has that of the registry.")
@output_option
@on_node
def level(node: AdminPort, subject: str | None, level: str | None, *, unset: bool, output: str) -> None:
    """Show or set the level of compatibility of SUBJECT, or of the registry.

    \b
    BACKWARD  new versions read what was written with the last one
    FORWARD   new versions are read by the last one
    FULL      both
    NONE      anything

    With _TRANSITIVE it is all earlier versions instead of the last one.
    """
    if level is not None and unset:
        raise click.UsageError("--set and --unset exclude each other")
    path = "/config" + (f"/{quote(subject, safe='')}" if subject else "")
    if level is not None:
        node.ask_registry("PUT", path, {"compatibility": level})
    elif unset:
        node.ask_registry("DELETE", path)
    own = node.ask_registry("GET", path, may_miss=True)
    found = own or node.ask_registry("GET", "/config")
    data = {"subject": subject, "level": found["compatibilityLevel"], "is_own": bool(own and subject)}
    inherited = " (the registry's)" if subject and not own else ""
    emit(output, data, f"{subject or 'registry'}: {data['level']}{inherited}")
