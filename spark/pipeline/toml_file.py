"""Reads a pipeline's TOML file. Each error is one line with file, line, setting and what to do."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from anabranch.client.properties import is_secret
from anabranch.spark.pipeline.errors import PipelineError, SettingError
from anabranch.spark.pipeline.sections import DecodeSection, SettingConflict, TableFormat
from anabranch.spark.pipeline.settings import PipelineSettings

_SECTION = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=\s*"
)
_NAME = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_TABLES_OF_OPTIONS = (("options",), ("conf",), ("properties",))
_PATHS_OF_STORAGE = ("config", "datadir", "objects")
"""Options of the direct source that are paths, in lower case."""
_QUOTES = ('"""', "'''")


def read_pipeline(path: Path) -> PipelineSettings:
    """Read a file. Paths in it become absolute, relative to the file's folder. Raises PipelineError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: not valid UTF-8") from None
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from None
    return parse_pipeline(text, path)


def parse_pipeline(text: str, path: Path) -> PipelineSettings:
    """Parse the text of the file `path` like `read_pipeline`. Raises PipelineError."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        where = re.search(r"\(at line (\d+), column (\d+)\)", reason)
        at = f":{where[1]}" if where else f":{max(1, len(text.splitlines()))}"
        raise PipelineError(f"{path}{at}: {reason.partition(' (at ')[0]}") from None
    except RecursionError:
        raise PipelineError(f"{path}: values are nested too deeply") from None
    try:
        return _with_absolute_paths(PipelineSettings.model_validate(values), path.absolute().parent)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where_path, message = describe(detail)
        raise PipelineError(f"{path}:{line_of(text, where_path)}: {message}") from None


def located(error: PipelineError, path: Path) -> str:
    """Return the error's text, with file and line before it if it names a setting of the file."""
    if not isinstance(error, SettingError):
        return str(error)
    try:
        line = line_of(path.read_text(encoding="utf-8"), error.setting)
    except (OSError, UnicodeDecodeError):
        return f"{path}: {error}"
    return f"{path}:{line}: {error}"


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the line of a setting from 1, or of the nearest section above it that is in the file."""
    path = _flat(path)
    best, best_depth = 1, 0
    for number, names in _settings(text):
        found = _flat(names)
        depth = 0
        for wanted, name in zip(path, found, strict=False):
            if wanted != name:
                break
            depth += 1
        if depth == len(found) and depth > best_depth:
            best, best_depth = number, depth
    return best


def _flat(names: Sequence[str]) -> list[str]:
    """Return names without dots in them: a setting of a field does not tell where its own name ends."""
    return [part for name in names for part in name.split(".")]


def _settings(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield line and full name of each section and each key. Lines within a value are skipped."""
    section: tuple[str, ...] = ()
    closing: str | None = None
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        if closing is not None:
            if closing in line:
                closing = None
            continue
        if depth > 0:
            depth += _brackets(line)
            continue
        if found := _SECTION.match(line):
            section = _names(found[1])
            yield number, section
        elif found := _KEY.match(line):
            yield number, section + _names(found[1])
            rest = line[found.end() :]
            closing = next((quote for quote in _QUOTES if rest.startswith(quote) and rest.count(quote) == 1), None)
            depth = 0 if closing else _brackets(rest)


def _brackets(line: str) -> int:
    """Return the number of brackets that a line leaves open."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*', "", line)
    return sum(bare.count(sign) for sign in "[{") - sum(bare.count(sign) for sign in "]}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(next(part for part in found.groups() if part is not None) for found in _NAME.finditer(text))


def describe(detail: ErrorDetails) -> tuple[tuple[str, ...], str]:
    """Return the path of the setting that pydantic refuses, and the message."""
    conflict = detail.get("ctx", {}).get("error")
    if isinstance(conflict, SettingConflict):
        path = (*map(str, detail["loc"]), *conflict.path)
        return path, f"{_printable(path)}{_given(detail['input'], path, conflict.path)}: {conflict}"
    # Members of a union are parts of pydantic's path, but not of the file's.
    path = tuple(
        str(part) for part in detail["loc"] if not re.search(r"[\[\],]|^(literal|dict|constrained|function)", str(part))
    )
    name = _printable(path)
    match detail["type"]:
        case "missing":
            return path, f"{name} is missing"
        case "extra_forbidden":
            section = ".".join(path[:-1])
            return path, f"{name} is not a setting; {_known(path[:-1], section)}"
        case "tuple_type":  # TOML's term for it
            return path, f"{name} = {detail['input']!r}: input should be a list"
    message = detail["msg"].removeprefix("Value error, ")
    given = "" if _may_be_secret(path) else f" = {detail['input']!r}"
    return path, f"{name}{given}: {message[0].lower()}{message[1:]}"


def _printable(path: Sequence[str]) -> str:
    return ".".join(part if part.isprintable() else repr(part) for part in path)


def _given(section: object, path: tuple[str, ...], names: tuple[str, ...]) -> str:
    """Return ` = VALUE` for the setting `names` of a section, at `path` in the file; empty where there is none."""
    value = section
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    has_place_for_secrets = "@" in str(value) or "://" in str(value)  # addresses hold passwords and tokens
    is_shown = isinstance(value, str | int | float) and not _may_be_secret(path) and not has_place_for_secrets
    return f" = {value!r}" if is_shown else ""


def _may_be_secret(path: tuple[str, ...]) -> bool:
    return path[-1:] == ("options",) or path[-2:-1] in _TABLES_OF_OPTIONS or any(map(is_secret, path))


def _known(path: tuple[str, ...], name: str) -> str:
    model: object = PipelineSettings
    for part in path:
        annotation = getattr(model, "model_fields", {})[part].annotation
        model = next(
            kind for kind in (*getattr(annotation, "__args__", ()), annotation) if hasattr(kind, "model_fields")
        )
    fields = ", ".join(getattr(model, "model_fields", {}))
    return f"{f'[{name}]' if name else 'the file'} takes: {fields}"


def _with_absolute_paths(pipeline: PipelineSettings, folder: Path) -> PipelineSettings:
    """Make folders of the file relative to it, not to the working directory. URLs are unchanged."""

    def absolute(text: str | None) -> str | None:
        return text if text is None or _URL.match(text) else str(folder / text)

    def with_schemas(section: DecodeSection) -> DecodeSection:
        files = {key: str(absolute(path)) for key, path in section.schemas.items()}
        return section.model_copy(update={"schema_file": absolute(section.schema_file), "schemas": files})

    kind, warehouse = pipeline.catalog.type, pipeline.catalog.warehouse
    if warehouse is None and pipeline.table.format is TableFormat.ICEBERG and kind == "hadoop":
        warehouse = "lake"
    if kind != "rest":  # a service has names for its warehouses
        warehouse = absolute(warehouse)
    source = pipeline.source
    options = {
        name: str(absolute(value)) if source.kind == "direct" and name.lower() in _PATHS_OF_STORAGE else value
        for name, value in source.options.items()
    }
    return pipeline.model_copy(
        update={
            "source": source.model_copy(update={"client_config": absolute(source.client_config), "options": options}),
            "checkpoint": absolute(pipeline.checkpoint),
            "decode": with_schemas(pipeline.decode),
            "key": with_schemas(pipeline.key),
            "table": pipeline.table.model_copy(update={"location": absolute(pipeline.table.location)}),
            "dead_letters": pipeline.dead_letters.model_copy(
                update={"location": absolute(pipeline.dead_letters.location)}
            ),
            "catalog": pipeline.catalog.model_copy(update={"warehouse": warehouse}),
        }
    )
