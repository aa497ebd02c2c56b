"""Takes the place of a module that kafka-python's source distribution leaves out: services it would start."""


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """It is open."""

    def close(self) -> None:
        """It stays open."""


class SpawnedService:
    """A broker of the suite's own: never used, as KAFKA_URI names one."""
