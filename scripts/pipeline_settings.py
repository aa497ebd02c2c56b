"""Prints the table of a pipeline's settings for docs/spark.md: `python -m scripts.pipeline_settings`."""

import types
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from anabranch.spark.pipeline.sections import Section
from anabranch.spark.pipeline.settings import PipelineSettings


def sections() -> Iterator[tuple[str, type[Section]]]:
    """Yield the file's own settings under the empty name, and each of its tables."""
    yield "", PipelineSettings
    for name, field in PipelineSettings.model_fields.items():
        if (model := model_of(field)) is not None:
            yield name, model


def model_of(field: FieldInfo) -> type[Section] | None:
    """Return the section that a field is, or None."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def row(section: str, name: str, field: FieldInfo) -> str:
    """Return the row of one setting."""
    key = f"{section}.{name}" if section else name
    about = (field.description or "").replace("\n", " ").replace("|", "\\|")
    choices = allowed(field.annotation)
    if choices and not all(f"`{choice}`" in about for choice in choices):
        about = f"{' or '.join(f'`{choice}`' for choice in choices)}. {about}".strip()
    return f"| `{key}` | {default_of(field)} | {about} |"


def default_of(field: FieldInfo) -> str:
    """Return the default in TOML's notation."""
    value: Any = field.default
    if value is PydanticUndefined:
        return "needed"
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, Enum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def allowed(annotation: Any) -> list[str]:
    """Return the values that a setting can have, if they are listed."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    if get_origin(annotation) in {Union, types.UnionType, Annotated}:
        return [word for part in get_args(annotation) for word in allowed(part)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    return []


def table() -> str:
    """Return the whole table as Markdown. Keys have the settings of values, which are listed once."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for section, model in sections():
        rows = [row(section, name, field) for name, field in model.model_fields.items() if model_of(field) is None]
        if section == "key" and all(each.replace("`key.", "`decode.", 1) in lines for each in rows):
            rows = ["| `key...` | | As `decode...`, for keys. |"]
        lines += rows
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
