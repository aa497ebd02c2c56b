"""Kafka's client properties as options of Spark's Kafka source and sink: `kafka.` and the name.

    options = read_kafka_options("client.properties")     # and the environment, KAFKA_CLIENT_...
    spark.readStream.format("kafka").options(**options)
    frame.write.format("kafka").options(**options)

Names of librdkafka become those of Java. Options hold secrets: `session.REDACTION` keeps Spark from showing them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from anabranch.client.errors import PropertyError
from anabranch.client.properties import JAAS_CONFIG, parse_jaas, quote_jaas
from anabranch.client.settings import gather

PREFIX: Final = "kafka."
_PACKAGE: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "PLAIN": f"{_PACKAGE}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_PACKAGE}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_PACKAGE}.scram.ScramLoginModule",
}


def read_kafka_options(file: str | Path | None = None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of a properties file and the environment, which overrides it. Raises PropertyError."""
    found = gather(None if file is None else Path(file), None, os.environ if environment is None else environment)
    return {f"{PREFIX}{name}": value for name, value in java_properties(found).items()}


def client_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the client properties in options of the source."""
    return {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties with the names that Java's clients have. Raises PropertyError."""
    found = dict(properties)
    if (authorities := found.pop("ssl.ca.location", None)) is not None:
        found.setdefault("ssl.truststore.type", "PEM")
        found.setdefault("ssl.truststore.location", authorities)
    certificate, key = found.pop("ssl.certificate.location", None), found.pop("ssl.key.location", None)
    if certificate is not None:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = _read("ssl.certificate.location", certificate)
        found["ssl.keystore.key"] = _read("ssl.key.location", key or certificate)
    login = {name: found.pop(f"sasl.{name}") for name in ("username", "password") if f"sasl.{name}" in found}
    module = _MODULES.get(found.get("sasl.mechanism", ""))
    if login and module is not None:
        options = {**(parse_jaas(found[JAAS_CONFIG]).options if JAAS_CONFIG in found else {}), **login}
        pairs = "".join(f" {name}={quote_jaas(value)}" for name, value in options.items())
        found[JAAS_CONFIG] = f"{module} required{pairs};"
    return found


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise PropertyError(f"property {name}: {path}: {getattr(error, 'strerror', None) or 'not PEM'}") from None
