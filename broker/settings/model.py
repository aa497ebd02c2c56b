"""All settings of a node: one frozen model per area, each field with its unit in its name, a default and a description.

These models are the one source: flags and help (`broker.cli.serve`), environment and TOML names, validation and
`docs/configuration.md` are derived from them (`broker.settings.sources`). A field's outside name is its area and its
name (`wal.capacity_bytes`, `--wal-capacity-bytes`, `ANABRANCH_WAL_CAPACITY_BYTES`); the areas `node` and `listener`
are left out of flag and environment names. Additional object stores bear names of the user's choice: each has a
table `[stores.NAME]`, and variables `ANABRANCH_STORE_NAME_FIELD`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from broker.settings.area import MIB, Area, Bytes, Port
from broker.settings.client_areas import (
    FetchSettings,
    GroupSettings,
    ListenerSettings,
    NetworkSettings,
    TelemetrySettings,
    TopicSettings,
    TransactionSettings,
)
from broker.settings.storage_areas import (
    CatalogSettings,
    CompactionArea,
    NamedStoreSettings,
    ObjectsSettings,
    StorageArea,
    WalArea,
)


class NodeSettings(Area):
    """Who this node is and where it keeps its files."""

    node_id: int = Field(default=1, ge=0, le=2**31 - 1, description="Id of this node, unique in the cluster.")
    cluster: str = Field(
        default="anabranch",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of the cluster: the same on all its nodes, part of every object's key.",
    )
    data_dir: Path = Field(
        default=Path("data"),
        description="Directory for everything that has no place of its own: WAL file, objects, catalog, lock file.",
    )
    memory_bytes: Bytes | None = Field(
        default=None,
        ge=64 * MIB,
        description=(
            "Memory that the node may use; unset: the limit of its container (control group), or the machine's memory. "
            "Half of it is shared out: see Memory below. Set it for each of several nodes on a host."
        ),
    )
    drain_timeout_ms: int = Field(
        default=10_000, ge=0, description="How long a stopping node waits for requests under way."
    )
    stop_upload_timeout_ms: int = Field(
        default=15_000,
        ge=0,
        description=(
            "How long a stopping node tries to upload what is left; after that, the next start finds it in the WAL."
        ),
    )


class AdminSettings(Area):
    """The HTTP port for metrics, status and maintenance. It has no authentication: keep it on loopback."""

    enabled: bool = Field(default=True, description="Open the port.")
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=9644, description="Port to listen on; 0 takes a free one.")


class LogSettings(Area):
    """What the node says on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level shown.")
    format: Literal["auto", "pretty", "json"] = Field(
        default="auto", description="`auto`: pretty on a terminal, JSON otherwise."
    )


class Settings(Area):
    """Everything a node is told at its start."""

    node: NodeSettings = NodeSettings()
    listener: ListenerSettings = ListenerSettings()
    network: NetworkSettings = NetworkSettings()
    wal: WalArea = WalArea()
    storage: StorageArea = StorageArea()
    objects: ObjectsSettings = ObjectsSettings()
    catalog: CatalogSettings = CatalogSettings()
    topic: TopicSettings = TopicSettings()
    fetch: FetchSettings = FetchSettings()
    group: GroupSettings = GroupSettings()
    transaction: TransactionSettings = TransactionSettings()
    compaction: CompactionArea = CompactionArea()
    telemetry: TelemetrySettings = TelemetrySettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    stores: Mapping[str, NamedStoreSettings] = {}
    """Object stores beside that of `objects`, by name."""

    @property
    def wal_path(self) -> Path:
        """Where the log lies."""
        return self.wal.path or self.node.data_dir / "wal"

    @property
    def objects_path(self) -> Path:
        """Where a local object store lies."""
        return self.objects.path or self.node.data_dir / "objects"

    @property
    def catalog_url(self) -> str:
        """Where the catalog lies."""
        return self.catalog.url or f"sqlite:///{(self.node.data_dir / 'catalog.db').resolve()}"

    @property
    def one_machine(self) -> bool:
        """Whether all processes that use the catalog are on one machine, as SQLite's must be."""
        return self.catalog_url.startswith("sqlite")
