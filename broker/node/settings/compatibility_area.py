"""Settings about what clients take the node for."""

from dataclasses import dataclass

from anabranch.broker.node.settings.area import Area, setting
from anabranch.broker.node.settings.known import KafkaRelease


@dataclass(frozen=True, kw_only=True)
class CompatibilitySettings(Area):
    """The release of Apache Kafka that clients take the node for. The same on all nodes."""

    kafka: KafkaRelease | None = setting(
        default=None,
        description="Serve only the APIs, versions and features that this release has, to test clients against an "
        "older broker. Unset: all that the node has.",
    )
