"""The file with the schema of a pipeline's keys or values."""

from pathlib import Path

from anabranch.spark.pipeline.errors import UnusableSchema
from anabranch.spark.pipeline.sections import DecodeSection
from anabranch.tables.errors import SchemaError


def read_schema_file(settings: DecodeSection, section: str) -> bytes:
    """Return the contents of the schema file, or nothing if none is set. Raises PipelineError."""
    if settings.schema_file is None:
        return b""
    try:
        return Path(settings.schema_file).read_bytes()
    except OSError as error:
        raise UnusableSchema(f"{section}.schema_file", f"{settings.schema_file}: {error.strerror or error}") from error


def read_schema_texts(settings: DecodeSection, section: str) -> dict[str, str]:
    """Return the contents of the files of schemas that records were written with, by id. Raises PipelineError."""
    # Commands that start no Spark import this module, and need no Arrow.
    from anabranch.tables.avro import parse_avro

    found = {}
    for key, path in settings.schemas.items():
        setting = f"{section}.schemas.{key}"
        try:
            text = Path(path).read_text(encoding="utf-8")
            parse_avro(text)
        except OSError as error:
            raise UnusableSchema(setting, f"{path}: {error.strerror or error}") from error
        except (UnicodeDecodeError, SchemaError) as error:
            raise UnusableSchema(setting, f"{path}: {error}") from error
        found[key.lower()] = text
    return found
