"""Settings of the schema registry. Who may use it is among those of the admin port."""

from dataclasses import dataclass
from typing import Literal

from anabranch.broker.node.settings.area import Area, setting


@dataclass(frozen=True, kw_only=True)
class SchemaRegistrySettings(Area):
    """The schema registry, at `/schema-registry` of the admin port. The same on all nodes."""

    enabled: bool = setting(
        default=True,
        description="Serve it. Turn it off if a registry of Confluent's keeps its schemas in this cluster.",
    )
    compatibility: Literal[
        "NONE",
        "BACKWARD",
        "BACKWARD_TRANSITIVE",
        "FORWARD",
        "FORWARD_TRANSITIVE",
        "FULL",
        "FULL_TRANSITIVE",
    ] = setting(
        default="BACKWARD",
        description="What new versions of schemas must be compatible with, unless a subject or the registry has a "
        "level of its own.",
    )
