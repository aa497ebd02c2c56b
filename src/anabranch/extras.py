"""Extras: which packages each brings, and the one line that names an extra that is missing.

Modules that import such a package are imported inside of `needed`, by the code that has found them to be wanted.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "tables": ("pyarrow", "pyiceberg", "numpy", "fastavro", "google.protobuf"),
    "s3": ("aiobotocore", "botocore"),
    "postgres": ("psycopg",),
    "console": ("aiohttp", "prometheus_client", "pydantic_core", "pydantic"),
    "security": ("cryptography", "joserfc", "re2"),
    "cli": ("rich", "yaml", "confluent_kafka"),
    "speed": ("uvloop",),
    "otel": ("opentelemetry",),
    "avro": ("fastavro",),
    "containers": ("testcontainers",),
    "protobuf": ("google.protobuf", "grpc_tools"),
    "spark": ("pyspark", "py4j", "numpy", "pandas", "pyarrow"),
}
"""Names of the packages that an extra brings, as they are imported. Of several with one, `missing` names the last.

Pydantic 1, which others may need, has no core.
"""
_EXTRA_OF: Final[Mapping[str, str]] = {
    package.partition(".")[0]: extra for extra, packages in EXTRAS.items() for package in packages
}


class MissingExtra(Exception):
    """Something needs a package that is not installed, or too old. The text is the one line to show."""


def is_installed(extra: str) -> bool:
    """Return whether the packages of an extra are there. Imports at most the packages around them."""
    try:
        return all(find_spec(each) is not None for each in EXTRAS[extra])
    except ModuleNotFoundError:  # one is inside of another package, which is not there either
        return False


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Import packages of an extra for `what`. Raises MissingExtra if one is not there; other errors remain."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_OF:
            raise
        raise missing(what, package) from None


def missing(what: str, package: str, extra: str | None = None) -> MissingExtra:
    """Return the error that `what` needs a package of an extra, by default the last one that brings it."""
    command = install_command(extra or _EXTRA_OF[package])
    return MissingExtra(f"{what} needs {package}, which is missing or too old: {command}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'anabranch[{extra}]'"
