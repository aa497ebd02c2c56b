"""The broker for tests in a container, by testcontainers: for tests that run other programs in containers, too.

    from anabranch.testing.containers import AnabranchContainer

    with AnabranchContainer() as anabranch:
        producer = Producer({"bootstrap.servers": anabranch.get_bootstrap_server()})

Its methods have the names of those of testcontainers' own modules for Kafka and Redpanda. The container runs
`anabranch dev`, which must announce an address that leads to it from outside. The port there is known once the
container runs: so it waits for a file with its command.
"""

import shlex
from collections.abc import Mapping
from typing import Any, Final, Self

from anabranch.extras import needed

with needed("AnabranchContainer"):
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

IMAGE: Final = "anabranch:latest"
"""The target `node` of the project's Dockerfile, as `docker build --target node -t anabranch .` names it."""
KAFKA_PORT: Final = 9092
NETWORK_PORT: Final = 29092
"""Port for other containers of its network."""
ADMIN_PORT: Final = 9644
SHARED_MEMORY: Final = "512m"
"""Size of /dev/shm, where the data is: by default a container has too little there."""
START_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.1
COMMAND_FILE: Final = "/tmp/anabranch-command"  # noqa: S108 - of the container
READY: Final = r"^Kafka +\S+:\d+$"
"""First line of `anabranch dev` once clients can connect."""


class AnabranchContainer(DockerContainer):
    """A container with a broker, whose data is gone with it.

    Clients in other containers of its network connect to port 29092 of its name there (`with_network_aliases`).
    """

    def __init__(self, image: str = IMAGE, *, settings: Mapping[str, object] | None = None, **kwargs: Any) -> None:
        """`settings` are those of a node, by name (`{"topic.num_partitions": 3}`); `kwargs` are for Docker."""
        super().__init__(image, **{"entrypoint": "sh", "shm_size": SHARED_MEMORY, **kwargs})
        self.settings = dict(settings or {})
        self.with_exposed_ports(KAFKA_PORT, ADMIN_PORT)

    def with_kraft(self) -> Self:
        """Change nothing: there is no ZooKeeper to do without. For tests that were written for `KafkaContainer`."""
        return self

    def get_bootstrap_server(self) -> str:
        """Return `host:port` for clients outside of containers."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(KAFKA_PORT)}"

    def get_schema_registry_address(self) -> str:
        """Return the URL of the schema registry, for clients outside of containers."""
        return f"http://{self.get_container_host_ip()}:{self.get_exposed_port(ADMIN_PORT)}/schema-registry"

    def start(self, timeout: float = START_TIMEOUT_S) -> Self:
        """Start it, and return when clients can connect.

        Raises TimeoutError, or RuntimeError if it ends, with a note of what it has said.
        """
        self.with_command(["-c", f"until [ -s {COMMAND_FILE} ]; do sleep 0.1; done; . {COMMAND_FILE}"])
        super().start()
        self.copy_into_container(f"exec {shlex.join(self._command_line())}\n".encode(), COMMAND_FILE)
        try:
            ready = LogMessageWaitStrategy(READY).with_startup_timeout(int(timeout)).with_poll_interval(POLL_S)
            ready.wait_until_ready(self)
        except (RuntimeError, TimeoutError) as error:
            error.add_note(b"".join(self.get_logs()).decode("utf-8", "replace"))
            raise
        return self

    def _command_line(self) -> list[str]:
        host = self.get_container_host_ip()
        settings = {
            "listener.listeners": f"HOST://:{KAFKA_PORT},NETWORK://:{NETWORK_PORT}",
            # NETWORK announces the container's own name.
            "listener.advertised_listeners": f"HOST://{self.get_bootstrap_server()}",
            "listener.security_protocol_map": "HOST:PLAINTEXT,NETWORK:PLAINTEXT",
            "admin.host": "0.0.0.0",  # noqa: S104 - of the container
            "admin.allowed_hosts": host,
            **self.settings,
        }
        flags = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
        return ["anabranch", "dev", "--admin-port", str(ADMIN_PORT), *flags]
