"""TLS between brokers and clients of a benchmark: one certificate for all brokers, one cipher suite for all clients."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.lab.client import Options
from tests.support.certificates import Authority

SUITES: Mapping[str, str] = {
    "TLS_AES_128_GCM_SHA256": "TLSv1.3",
    "TLS_AES_256_GCM_SHA384": "TLSv1.3",
    "TLS_CHACHA20_POLY1305_SHA256": "TLSv1.3",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "TLSv1.2",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "TLSv1.2",
}
"""Versions by suite; the key is of curve P-256."""
DEFAULT_SUITE = next(iter(SUITES))


class Tls:
    """A certificate for the brokers, and the options with which Apache Kafka's clients trust it."""

    def __init__(self, folder: Path, suite: str = DEFAULT_SUITE) -> None:
        authority = Authority(folder)
        self.certificate = authority.issue("localhost").both
        """PEM file with the key, too."""
        self._configs: Options = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.file),
            "ssl.enabled.protocols": SUITES[suite],
            "ssl.protocol": SUITES[suite],
            "ssl.cipher.suites": suite,
        }

    def options(self, client: str) -> Options:
        """Return the options of PerfClient.java for its `producer` or `consumer`."""
        return {f"{client}.{name}": value for name, value in self._configs.items()}
