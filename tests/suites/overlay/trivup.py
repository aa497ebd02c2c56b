"""Replaces a package with which confluent-kafka's tests start clusters: stands for the node that runs.

Where BROKERS names that, tests start no cluster but one with SASL, which there is not.
"""

import os


class KafkaCluster:
    """The node that runs, with its schema registry, whatever cluster is wanted."""

    def __init__(self, **_: object) -> None:
        self.sr = {"url": os.environ["SUITE_REGISTRY"]}

    def wait_operational(self) -> None:
        """Return: it serves."""

    def client_conf(self) -> dict[str, str]:
        """Return what clients need to connect."""
        return {"bootstrap.servers": os.environ["SUITE_BROKER"]}

    def stop(self, *, cleanup: bool) -> None:
        """Leave it running: other tests use it."""
