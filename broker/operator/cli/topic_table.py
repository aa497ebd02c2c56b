"""Options of `topic create` and `topic alter` that make a topic a table, and the configs that they stand for."""

import base64
from collections.abc import Callable, Mapping
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final

import click

from anabranch.protocol.encoder import STRING_BYTES_MAX

FORMATS: Final = ("raw", "json", "avro", "protobuf", "auto")
SHOWN_CHARACTERS_MAX: Final = 80
_FILE: Final = click.Path(path_type=Path, dir_okay=False, allow_dash=True)


_OPTIONS: Final = (
    click.option(
        "--table",
        "value_format",
        type=click.Choice(FORMATS),
        help="Make it a table, whose columns are the fields of values in this format. auto: that of the registry.",
    ),
    click.option(
        "--schema",
        "value_schema",
        type=_FILE,
        metavar="FILE",
        help="Schema of values: a JSON Schema, .avsc, or a descriptor set of protobuf  [default: the registry's]",
    ),
    click.option("--table-key", "key_format", type=click.Choice(FORMATS), help="Format of keys  [default: raw]"),
    click.option("--key-schema", type=_FILE, metavar="FILE", help="Schema of keys, as --schema."),
)


def table_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the command receives the configs that they set as `table_configs`."""

    def run(
        value_format: str | None,
        value_schema: Path | None,
        key_format: str | None,
        key_schema: Path | None,
        **arguments: Any,
    ) -> None:
        parts = (("value", value_format, value_schema), ("key", key_format, key_schema))
        configs = {name: value for part in parts for name, value in _configs(*part).items()}
        if value_format is None and configs:
            raise click.UsageError("--schema, --table-key and --key-schema need --table")
        if value_format is not None:
            configs = {"table.enable": "true", **configs}
        command(table_configs=configs, **arguments)

    wrapped = update_wrapper(run, command)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _configs(part: str, kind: str | None, schema: Path | None) -> Mapping[str, str]:
    """Return the configs of keys or values."""
    found = {} if kind is None else {f"table.{part}": kind}
    if schema is not None:
        if kind in {None, "raw", "auto"}:
            raise click.UsageError(f"{schema}: the format is not told by a file: give --table{_suffix(part)} as well")
        found[f"table.{part}.schema"] = _schema_text(schema, kind or "")
    return found


def _suffix(part: str) -> str:
    return "" if part == "value" else f"-{part}"


def _schema_text(file: Path, kind: str) -> str:
    """Return a schema file as the value of a config."""
    try:
        with click.open_file(str(file), "rb") as source:
            data: bytes = source.read()
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror or error}") from None
    text = _config_text(file, kind, data)
    if (size := len(text.encode())) > STRING_BYTES_MAX:
        raise click.ClickException(
            f"{file}: {size:,} bytes, of which a config has room for {STRING_BYTES_MAX:,}: register it in the schema "
            "registry instead (`anabranch schema register`), and leave out the file"
        )
    return text


def _config_text(file: Path, kind: str, data: bytes) -> str:
    if kind == "protobuf":
        if file.suffix == ".proto":
            raise click.UsageError(
                f"{file}: compile it first: protoc --include_imports --descriptor_set_out={file.stem}.desc {file}"
            )
        return base64.b64encode(data).decode()
    try:
        return data.decode().strip()  # as nodes keep it: the same file is no change
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}: {error}") from None


def shown_value(value: str) -> str:
    """Return the value of a config in one line, however long it is."""
    text = " ".join(value.split())
    return (
        text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}... ({len(value):,} characters)"
    )
