"""Read a pipeline's TOML file; whatever is wrong in it becomes one line with file, line, setting and what to do."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spark.pipeline.errors import PipelineError, SettingError
from spark.pipeline.settings import PipelineSettings, SettingConflict, TableFormat

_SECTION = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=\s*"
)
_NAME = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_QUOTES = ('"""', "'''")


def read_pipeline(path: Path) -> PipelineSettings:
    """The pipeline of a file, with the paths in it made absolute from the file's folder. Raises PipelineError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: not a text in UTF-8") from None
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from None
    return parse_pipeline(text, path)


def parse_pipeline(text: str, path: Path) -> PipelineSettings:
    """As `read_pipeline`, of a text that stands for the file `path`. Raises PipelineError."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        where = re.search(r"\(at line (\d+), column (\d+)\)", reason)
        at = f":{where[1]}" if where else f":{max(1, len(text.splitlines()))}"
        raise PipelineError(f"{path}{at}: {reason.partition(' (at ')[0]}") from None
    try:
        return _with_absolute_paths(PipelineSettings.model_validate(values), path.absolute().parent)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where_path, message = _describe(detail)
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
    """Line of a setting, or of the nearest thing above it that the file has (its section); from 1."""
    best, best_depth = 1, 0
    for number, found in _settings(text):
        depth = 0
        for wanted, name in zip(path, found, strict=False):
            if wanted != name:
                break
            depth += 1
        if depth == len(found) and depth > best_depth:
            best, best_depth = number, depth
    return best


def _settings(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and full name of each section and each key; what stands inside a value's own lines is passed over."""
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
    """How many brackets a line opens and leaves open."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*', "", line)
    return sum(bare.count(sign) for sign in "[{") - sum(bare.count(sign) for sign in "]}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(next(part for part in found.groups() if part is not None) for found in _NAME.finditer(text))


def _describe(detail: ErrorDetails) -> tuple[tuple[str, ...], str]:
    """The setting's path and what to say of it."""
    conflict = detail.get("ctx", {}).get("error")
    if isinstance(conflict, SettingConflict):
        return conflict.path, f"{'.'.join(conflict.path)}: {conflict}"
    # A union's members are parts of pydantic's path, but not of the file's.
    path = tuple(
        str(part) for part in detail["loc"] if not re.search(r"[\[\],]|^(literal|dict|constrained|function)", str(part))
    )
    name = ".".join(path)
    match detail["type"]:
        case "missing":
            return path, f"{name} is missing"
        case "extra_forbidden":
            section = ".".join(path[:-1])
            return path, f"{name} is not a setting; {_known(path[:-1], section)}"
        case "tuple_type":  # as TOML calls it
            return path, f"{name} = {detail['input']!r}: input should be a list"
    message = detail["msg"].removeprefix("Value error, ")
    return path, f"{name} = {detail['input']!r}: {message[0].lower()}{message[1:]}"


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
    """Folders of the file are relative to it, not to wherever the command was called; URLs stay."""

    def absolute(text: str | None) -> str | None:
        return text if text is None or _URL.match(text) else str(folder / text)

    warehouse = pipeline.catalog.warehouse
    if warehouse is None and pipeline.table.format is TableFormat.ICEBERG and pipeline.catalog.type == "hadoop":
        warehouse = "lake"
    return pipeline.model_copy(
        update={
            "checkpoint": absolute(pipeline.checkpoint),
            "decode": pipeline.decode.model_copy(update={"schema_file": absolute(pipeline.decode.schema_file)}),
            "table": pipeline.table.model_copy(update={"location": absolute(pipeline.table.location)}),
            "dead_letters": pipeline.dead_letters.model_copy(
                update={"location": absolute(pipeline.dead_letters.location)}
            ),
            "catalog": pipeline.catalog.model_copy(update={"warehouse": absolute(warehouse)}),
        }
    )
