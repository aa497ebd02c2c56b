"""Makes kafka-python's tests of SASL and TLS use a broker that runs, instead of one that they would start."""

import os
from typing import Any

from kafka import KafkaAdminClient
from test.integration import fixtures  # type: ignore[import-not-found]

LISTENERS = dict(each.split("://") for each in os.environ["SUITE_LISTENERS"].split(","))
"""Addresses by protocol."""


class RunningBroker(fixtures.KafkaFixture):  # type: ignore[misc]
    """The broker of the run."""

    broker_user = os.environ["SUITE_USER"]
    broker_password = os.environ["SUITE_PASSWORD"]

    @classmethod
    def instance(cls, broker_id: int, *, transport: str = "PLAINTEXT", tmp_dir: Any = None, **wanted: Any) -> Any:
        """Return it, as seen at the listener of a protocol."""
        port = int(LISTENERS[transport].rpartition(":")[2])
        made = cls("localhost", port, broker_id, external=True, transport=transport, **wanted)
        made.ssl_dir = os.environ["SUITE_AUTHORITY"]
        return made

    def start(self) -> None:
        """Do nothing: it runs."""

    def get_topic_names(self) -> list[str]:
        """Ask by a client instead of Kafka's command."""
        admin = KafkaAdminClient(**fixtures.client_params(self, "names"))
        try:
            return list(admin.list_topics())
        finally:
            admin.close()


fixtures.KafkaFixture = RunningBroker
