"""Replaces a module with services to start, which kafka-python's source distribution leaves out."""


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Do nothing: the service is already open."""

    def close(self) -> None:
        """Do nothing: the service stays open."""

    def dump_logs(self) -> None:
        """Do nothing: the runner keeps the output."""


class SpawnedService:
    """A broker that the suite would start: never used, as KAFKA_URI names a running one."""
