"""All settings of a node: one frozen model per area, each field with its unit in its name, a default and a description.

The models define every setting once. Flags and help (`broker.operator.cli.serve`), names
(`broker.node.settings.names`), validation (`broker.node.settings.sources`) and `docs/configuration.md`
(`broker.node.settings.documentation`) are derived from them. A setting's name consists of area and field
(`wal.capacity_bytes`, `--wal-capacity-bytes`, `ANABRANCH_WAL_CAPACITY_BYTES`); flags and environment leave out the
areas `node` and `listener`. Additional object stores and catalogs of tables have names that the user chooses: each has
a table `[stores.NAME]` or `[table_catalogs.NAME]`, and variables `ANABRANCH_STORE_NAME_FIELD` or
`ANABRANCH_TABLE_CATALOG_NAME_FIELD`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.node.settings.area import AUTO_ID, MIB, Area, Bytes, CountOrAuto, NodeId, Port, setting
from anabranch.broker.node.settings.authorizer_area import AuthorizerSettings
from anabranch.broker.node.settings.client_areas import (
    FetchSettings,
    GroupSettings,
    ListenerSettings,
    NetworkSettings,
    QuotaSettings,
    ShareSettings,
    TelemetrySettings,
    TopicSettings,
    TransactionSettings,
)
from anabranch.broker.node.settings.compatibility_area import CompatibilitySettings
from anabranch.broker.node.settings.delegation_token_area import DelegationTokenSettings
from anabranch.broker.node.settings.listeners import Listener, listeners_of
from anabranch.broker.node.settings.sasl_area import SaslSettings
from anabranch.broker.node.settings.schema_registry_area import SchemaRegistrySettings
from anabranch.broker.node.settings.ssl_area import InternalSslSettings, SslSettings
from anabranch.broker.node.settings.storage_areas import (
    CatalogSettings,
    CompactionArea,
    NamedStoreSettings,
    ObjectsSettings,
    StorageArea,
    WalArea,
)
from anabranch.broker.node.settings.table_catalogs import TableCatalogSettings
from anabranch.broker.node.settings.tables_area import TablesSettings
from anabranch.broker.node.settings.tracing_area import TracingSettings

PROCESSES_MAX: Final = 256
"""Nodes that one start may have: their numbers fit into a byte."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings(Area):
    """Identity of the node, its files, and the limits of its memory and its stop."""

    node_id: NodeId = setting(
        default=1,
        ge=0,
        le=2**31 - 1,
        description=(
            "Id of this node, unique in the cluster. `auto`: chosen at the start, for groups of machines that grow and "
            "shrink; the node's files are in a folder of its id, `node-ID`, in `node.data_dir`."
        ),
    )
    cluster: str = setting(
        default="anabranch",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of the cluster, the same on all its nodes. It is part of every object's key.",
    )
    data_dir: Path = setting(
        default=Path("data"),
        description="Directory of the lock file, and of WAL, objects and catalog unless they have a separate place.",
    )
    processes: CountOrAuto = setting(
        default=1,
        ge=1,
        le=PROCESSES_MAX,
        description=(
            "Nodes that one `serve` runs on its machine, each in a process of its own; `auto`: one for each core, with "
            "512 MiB of memory each at least."
        ),
    )
    memory_bytes: Bytes | None = setting(
        default=None,
        ge=64 * MIB,
        description=(
            "Memory of the node, half of which is divided among caches and buffers (see Memory). Unset: the "
            "limit of its control group, or the machine's memory, divided by `node.processes`. Set it when several "
            "starts share a host."
        ),
    )
    drain_timeout_ms: int = setting(
        default=10_000, ge=0, description="Time that a stopping node waits for requests in flight."
    )
    stop_upload_timeout_ms: int = setting(
        default=15_000,
        ge=0,
        description=(
            "Time that a stopping node tries to upload its remaining data. The rest stays in the WAL for the "
            "next start."
        ),
    )


LOOPBACK: Final = "127.0.0.1"
FOLDER_PREFIX: Final = "node-"
"""Beginning of the names of folders of nodes that share a data directory."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(Area):
    """The internal port, which other nodes of the cluster connect to. Clients need not reach it."""

    internal_port: Port | None = setting(
        default=None,
        description=(
            "Port for other nodes; 0: any free port. Unset: any free port, on 127.0.0.1 if the catalog is on "
            "SQLite, which only processes of one machine share."
        ),
    )
    internal_host: str = setting(
        default="",
        description=(
            "Address for other nodes. Empty: that of the first listener, or 127.0.0.1 if the port is unset "
            "and the catalog is on SQLite."
        ),
    )
    internal_advertised_host: str = setting(
        default="",
        description=(
            "Host name that other nodes connect to. Empty: `cluster.internal_host`, or the host announced to "
            "clients; the machine's name instead of 0.0.0.0."
        ),
    )
    balancer: bool = setting(
        default=True,
        description=(
            "Partitions move by themselves to even out what the nodes have to do. The setting of the controller, the "
            "living node with the lowest id, counts, unless the config `balancer.enable` is set."
        ),
    )
    balancer_zone: Literal["off", "prefer", "strict"] = setting(
        default="prefer",
        description=(
            "`prefer`: a partition moves to the rack whose clients exchange most bytes with it, if the load of the "
            "nodes there allows it. `strict`: whatever that load is, and never to a rack with fewer bytes. `off`: "
            "racks of clients do not count. The controller's value counts, unless the config `balancer.zone` is set."
        ),
    )
    internal_tls: Literal["off", "accepted", "preferred", "required"] = setting(
        default="off",
        description=(
            "TLS between nodes: `off`, `accepted` (the port takes both, this node connects without), "
            "`preferred` (the port takes both, this node connects with TLS), `required`. A cluster changes in "
            "this order, with one rolling restart for each."
        ),
    )
    internal_ssl_certificate_file: Path | None = setting(
        default=None,
        description="PEM file with the certificate for other nodes. Unset: `ssl.certificate_file`.",
    )
    internal_ssl_key_file: Path | None = setting(
        default=None,
        description=(
            "PEM file with its private key, not encrypted. Unset: it is in `cluster.internal_ssl_certificate_file`."
        ),
    )
    internal_ssl_ca_file: Path | None = setting(
        default=None,
        description=(
            "PEM file with the authorities of the nodes' certificates. The name in `cluster.internal_advertised_host` "
            "must be in the certificate."
        ),
    )
    internal_ssl_client_auth: Literal["none", "required"] = setting(
        default="none",
        description=(
            "Whether a node that connects must show a certificate of these authorities, with extendedKeyUsage "
            "clientAuth: `none`, `required`."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class LogSettings(Area):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        default="info", description="Lowest level that is written."
    )
    format: Literal["auto", "pretty", "json"] = setting(
        default="auto", description="Format of lines; `auto` is `pretty` on a terminal, else `json`."
    )


@dataclass(frozen=True, kw_only=True)
class Settings(Area):
    """All settings of a node."""

    node: NodeSettings = NodeSettings()
    listener: ListenerSettings = ListenerSettings()
    ssl: SslSettings = SslSettings()
    authorizer: AuthorizerSettings = AuthorizerSettings()
    sasl: SaslSettings = SaslSettings()
    delegation_token: DelegationTokenSettings = DelegationTokenSettings()
    network: NetworkSettings = NetworkSettings()
    cluster: ClusterSettings = ClusterSettings()
    wal: WalArea = WalArea()
    storage: StorageArea = StorageArea()
    objects: ObjectsSettings = ObjectsSettings()
    catalog: CatalogSettings = CatalogSettings()
    topic: TopicSettings = TopicSettings()
    fetch: FetchSettings = FetchSettings()
    group: GroupSettings = GroupSettings()
    transaction: TransactionSettings = TransactionSettings()
    share: ShareSettings = ShareSettings()
    compatibility: CompatibilitySettings = CompatibilitySettings()
    compaction: CompactionArea = CompactionArea()
    quota: QuotaSettings = QuotaSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    tracing: TracingSettings = TracingSettings()
    admin: AdminSettings = AdminSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    tables: TablesSettings = TablesSettings()
    log: LogSettings = LogSettings()
    stores: Mapping[str, NamedStoreSettings] = field(default_factory=dict)
    """Additional object stores, by name."""
    table_catalogs: Mapping[str, TableCatalogSettings] = field(default_factory=dict)
    """Other catalogs that tables may be published in, by name."""

    @property
    def has_auto_id(self) -> bool:
        """True if the node has no id yet: it chooses one at its start."""
        return self.node.node_id == AUTO_ID

    def with_node_id(self, node_id: int) -> Self:
        """Return the settings of the node with an id that was chosen, and a folder of its own.

        What nodes share stays where it is: objects and catalog.
        """
        return replace(
            self,
            node=replace(self.node, node_id=node_id, data_dir=self.node.data_dir / f"{FOLDER_PREFIX}{node_id}"),
            objects=replace(self.objects, path=self.objects_path),
            catalog=replace(self.catalog, url=self.catalog_url),
        )

    def node_folders(self) -> Sequence[int]:
        """Return the ids of the nodes that have a folder in the data directory."""
        texts = [each.name.removeprefix(FOLDER_PREFIX) for each in self.node.data_dir.glob(f"{FOLDER_PREFIX}*")]
        return sorted(int(text) for text in texts if re.fullmatch("0|[1-9][0-9]{0,9}", text))

    @property
    def wal_path(self) -> Path:
        """Path of the log: a file or a block device."""
        return self.wal.path or self.node.data_dir / "wal"

    @property
    def wal_store(self) -> str:
        """Name of the object store of the log, if its kind is `object`."""
        return self.wal.store or self.objects.store

    @property
    def objects_path(self) -> Path:
        """Directory of a local object store."""
        return self.objects.path or self.node.data_dir / "objects"

    @property
    def catalog_url(self) -> str:
        """URL of the catalog's database."""
        return self.catalog.url or f"sqlite:///{(self.node.data_dir / 'catalog.db').resolve()}"

    @property
    def listeners(self) -> Sequence[Listener]:
        """Listeners for clients, at least one. Raises SettingsError."""
        return listeners_of(self.listener)

    @property
    def uses_tls(self) -> bool:
        """True if a listener uses TLS. Raises SettingsError."""
        return any(each.protocol.uses_tls for each in self.listeners)

    @property
    def internal_ssl(self) -> SslSettings | None:
        """TLS of the internal port and of connections to those of other nodes; None: neither uses it."""
        cluster, ssl = self.cluster, self.ssl
        if cluster.internal_tls == "off":
            return None
        own = cluster.internal_ssl_certificate_file
        files: dict[str, Any] = {"certificate_file": own, "key_file": cluster.internal_ssl_key_file}
        if own is None:
            names = ("certificate_file", "key_file", "key_password", "key_password_file")
            files = {name: getattr(ssl, name) for name in names}
        return InternalSslSettings(
            **files,
            enabled_protocols=ssl.enabled_protocols,
            cipher_suites=ssl.cipher_suites,
            handshake_timeout_ms=ssl.handshake_timeout_ms,
            ca_file=cluster.internal_ssl_ca_file,
            client_auth=cluster.internal_ssl_client_auth,
        )

    @property
    def internal_host(self) -> str:
        """Address to listen on for other nodes. Raises SettingsError."""
        return self.cluster.internal_host or self._local_host or self.listeners[0].host

    @property
    def internal_advertised_host(self) -> str:
        """Host that other nodes connect to, or one that stands for all addresses. Raises SettingsError."""
        cluster = self.cluster
        return (
            cluster.internal_advertised_host
            or cluster.internal_host
            or self._local_host
            or self.listeners[0].advertised_host
        )

    @property
    def _local_host(self) -> str:
        """Loopback if all nodes are on this machine and nothing else is asked for; otherwise empty."""
        return LOOPBACK if self.one_machine and self.cluster.internal_port is None else ""

    @property
    def internal_port(self) -> int:
        """Port to listen on for other nodes, 0 for any."""
        return self.cluster.internal_port or 0

    @property
    def private_paths(self) -> Sequence[Path]:
        """The data directory, and the file of the catalog if it is elsewhere."""
        found = [self.node.data_dir]
        if self.catalog.url.startswith("sqlite"):
            found.append(Path(self.catalog.url.partition(":///")[2].partition("?")[0]))
        return found

    @property
    def one_machine(self) -> bool:
        """True if all processes that use the catalog run on one machine, as SQLite requires."""
        return self.catalog_url.startswith("sqlite")
