"""Settings of tables of topics. Who may read them is among those of the admin port."""

from dataclasses import dataclass

from anabranch.broker.node.settings.area import GIB, MIB, Area, Bytes, Secret, setting
from anabranch.broker.node.settings.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class TablesSettings(Area):
    """Tables of topics, and what the catalog at `/iceberg` of the admin port tells engines. The same on all nodes."""

    registry: str | None = setting(
        default=None,
        description="URL of the schema registry, with Confluent's interface, of keys and values in Avro, protobuf and "
        "JSON. Unset: the cluster's own registry.",
    )
    registry_credentials: Secret | None = setting(
        default=None, description="`user:password` for the schema registry (HTTP Basic)."
    )
    memory_bytes: Bytes = setting(
        default=1 * GIB,
        ge=256 * MIB,
        description="Memory that the process that makes columns may have. It runs beside the node, and is started for "
        "the first table. What needs more fails, and is repeated.",
    )
    s3_endpoint: str = setting(
        default="",
        description="URL of the S3 service for engines, where it differs from that of nodes. Empty: "
        "`objects.endpoint`, or that of the table's store.",
    )
    s3_access_key_id: str = setting(
        default="",
        description="Access key that engines get with each table that they load from the default store. It should "
        "read objects under `table/`, and do nothing else. Empty: engines have credentials of their own.",
    )
    s3_secret_access_key: Secret | None = setting(default=None, description="Its secret key.")


def check_tables(area: TablesSettings) -> None:
    """Check rules that concern several settings of tables. Raises SettingsError."""
    if bool(area.s3_access_key_id) != (area.s3_secret_access_key is not None):
        unset = "s3_access_key_id" if area.s3_secret_access_key is not None else "s3_secret_access_key"
        raise SettingsError(f"setting tables.{unset}: unset, but the other part of the key is set")
