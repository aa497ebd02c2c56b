"""The file with the schema of a pipeline's keys or values."""

from pathlib import Path

from anabranch.spark.pipeline.errors import UnusableSchema
from anabranch.spark.pipeline.sections import DecodeSection


def read_schema_file(settings: DecodeSection, section: str) -> bytes:
    """Return the contents of the schema file, or nothing if none is set. Raises PipelineError."""
    if settings.schema_file is None:
        return b""
    try:
        return Path(settings.schema_file).read_bytes()
    except OSError as error:
        raise UnusableSchema(f"{section}.schema_file", f"{settings.schema_file}: {error.strerror or error}") from error
