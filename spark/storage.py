"""Location of a cluster's catalog and objects, for jobs that read them without a node: from options or a settings file.

A node's settings file gives it (`[node] cluster, data_dir`, `[catalog] url`, `[objects] store, path, bucket, endpoint,
region, path_style`, its encryption and owner, and `[stores.NAME]` for each further store), and so
do options of the same names. No secret is sent to a task: S3 credentials come from each machine's environment, shared
files or instance. A catalog's password is removed from the URL that tasks get; PostgreSQL's `PGPASSWORD` or `~/.pgpass`
gives it to them.
"""

import random
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.store.config import StoreConfig, make_stores
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.store.protection import BucketProtection
from anabranch.s3stream.store.recycled import ReadBufferPool

if TYPE_CHECKING:
    from anabranch.s3stream.catalog.catalog import Catalog

CLUSTER_DEFAULT: Final = "anabranch"
OPTIONS: Final = {
    "config": "a node's settings file",
    "dataDir": "a node's data directory",
    "cluster": "the cluster's name",
    "catalog": "URL of the catalog",
    "objects": "directory of the objects, or s3://BUCKET",
    "endpoint": "address of the S3 service",
    "region": "region of the bucket",
    "pathStyle": "whether the bucket is in the path of the URL",
    "sseAlgorithm": "encryption of objects that are written: AES256, aws:kms or aws:kms:dsse",
    "sseKmsKeyId": "the KMS key",
    "sseKmsContext": "encryption context, NAME=VALUE,...",
    "sseBucketKeyEnabled": "whether S3 uses one key of KMS for many objects",
    "expectedBucketOwner": "account that the bucket must belong to",
    "stores.NAME.FIELD": "a field of a further store, named as in the settings of a node: type, path, bucket, ...",
}
STORES: Final = "stores"
PROTECTION_FIELDS: Final = tuple(field.name for field in fields(BucketProtection))
STORE_FIELDS: Final = ("type", "path", "bucket", "endpoint", "region", "path_style", *PROTECTION_FIELDS)


class LocationError(StorageError):
    """The options or the settings file do not give the location. The text names what is missing or wrong."""


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """Location of a cluster's storage."""

    cluster: str
    catalog_url: str
    stores: tuple[StoreConfig, ...]
    """The store of `[objects]`, named by its kind, and then the named stores."""

    def without_password(self) -> "StorageLocation":
        """Return the location for a task, whose data others may see."""
        if self.catalog_url.startswith("sqlite:"):
            return self
        from sqlalchemy import make_url

        url = make_url(self.catalog_url)._replace(password=None).difference_update_query(["password"])
        return replace(self, catalog_url=url.render_as_string())


def find_storage(options: Mapping[str, str]) -> StorageLocation:
    """Return the location that options give (see `OPTIONS`; names in any case). Raises LocationError."""
    given = {name.lower(): value for name, value in options.items()}
    file = _read_settings(Path(given["config"])) if "config" in given else {}
    node, objects = file.get("node", {}), file.get("objects", {})
    data_dir = given.get("datadir") or node.get("data_dir") or ("data" if "config" in given else None)
    url = given.get("catalog") or file.get("catalog", {}).get("url")
    if not url:
        if data_dir is None:
            raise LocationError("no catalog is given: set a settings file (config), a dataDir, or a catalog URL")
        database = Path(data_dir).expanduser().resolve() / "catalog.db"
        if not database.is_file():
            raise LocationError(f"there is no catalog in the data directory {data_dir}")
        url = f"sqlite:///{database}"
    cluster = given.get("cluster") or node.get("cluster") or CLUSTER_DEFAULT
    default = _store(given, objects, data_dir)
    return StorageLocation(cluster, url, (default, *_named_stores(given, file, default.name)))


def _store(given: Mapping[str, str], objects: Mapping[str, Any], data_dir: str | None) -> StoreConfig:
    place = given.get("objects")
    bucket = ""
    if place is not None and place.startswith("s3://"):
        bucket = place.removeprefix("s3://").strip("/")
    elif place is None and objects.get("store") == "s3":
        bucket = objects.get("bucket", "")
    if bucket:
        return StoreConfig(
            "s3",
            "s3",
            bucket=bucket,
            endpoint=given.get("endpoint") or objects.get("endpoint", ""),
            region=given.get("region") or objects.get("region", "us-east-1"),
            path_style=_is_true(given.get("pathstyle", objects.get("path_style", True))),
            protection=_protection(
                "", {name: given.get(name.replace("_", ""), objects.get(name)) for name in PROTECTION_FIELDS}
            ),
        )
    path = place or objects.get("path") or (str(Path(data_dir) / "objects") if data_dir else None)
    if path is None:
        raise LocationError("no objects are given: set a settings file (config), a dataDir, or objects")
    return StoreConfig("local", "local", path=Path(path).expanduser().resolve())


def _named_stores(given: Mapping[str, str], file: Mapping[str, Any], default: str) -> list[StoreConfig]:
    """Return the stores of the tables `[stores.NAME]`. Options override their fields."""
    tables: dict[str, dict[str, Any]] = {name: dict(table) for name, table in file.get(STORES, {}).items()}
    for option, value in given.items():
        area, _, rest = option.partition(".")
        if area == STORES:
            name, _, key = rest.partition(".")
            tables.setdefault(name, {})[key] = value
    return [_named_store(name, table, default) for name, table in tables.items()]


def _named_store(name: str, table: Mapping[str, Any], default: str) -> StoreConfig:
    if unknown := [key for key in table if key not in STORE_FIELDS]:
        raise LocationError(f"{STORES}.{name}.{unknown[0]}: expected one of {', '.join(STORE_FIELDS)}")
    if not name or name == default:
        raise LocationError(f"{STORES}.{name}: invalid name of a further store; the first one is {default!r}")
    kind, path, bucket = table.get("type"), table.get("path"), table.get("bucket", "")
    if kind == "local" and path:
        return StoreConfig(name, "local", path=Path(path).expanduser().resolve())
    if kind == "s3" and bucket:
        return StoreConfig(
            name,
            "s3",
            bucket=bucket,
            endpoint=table.get("endpoint", ""),
            region=table.get("region", "us-east-1"),
            path_style=_is_true(table.get("path_style", True)),
            protection=_protection(f"{STORES}.{name}.", table),
        )
    raise LocationError(f"{STORES}.{name}: expected type local with a path, or s3 with a bucket; found {dict(table)}")


def _protection(area: str, values: Mapping[str, Any]) -> BucketProtection:
    """Return encryption and owner of a bucket. Raises LocationError."""
    given = {name: values[name] for name in PROTECTION_FIELDS if values.get(name) not in {None, ""}}
    if "sse_bucket_key_enabled" in given:
        given["sse_bucket_key_enabled"] = _is_true(given["sse_bucket_key_enabled"])
    protection = BucketProtection(**given)
    if problem := protection.problem():
        raise LocationError(f"{area}{problem[0]}: {problem[1]}")
    return protection


def _is_true(value: object) -> bool:
    """Parse the value of an option or a setting."""
    return str(value).lower() == "true"


def _read_settings(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.expanduser().read_text())
    except OSError as error:
        raise LocationError(f"settings file {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise LocationError(f"settings file {path}: {error}") from None


@asynccontextmanager
async def opened_stores(
    location: StorageLocation, *, read_only: bool = True, memory: ReadBufferPool | None = None
) -> AsyncIterator[Mapping[str, ObjectStore]]:
    """Open the object stores, whose reads share `memory`. Raises StoreError.

    A missing local directory is not created.
    """
    async with AsyncExitStack() as stack:
        for config in location.stores:
            if config.path is not None and not config.path.is_dir():
                raise LocationError(f"the directory of the objects, {config.path}, does not exist on this machine")
        stores = make_stores(
            location.stores,
            random.Random(),  # noqa: S311 - spreads retries, hides nothing
            read_only=read_only,
            memory=memory,
        )
        for store in stores.values():
            stack.push_async_callback(store.close)
            await store.open()
        yield stores


@asynccontextmanager
async def opened_catalog(location: StorageLocation, *, read_only: bool = True) -> "AsyncIterator[Catalog]":
    """Open the catalog, read-only by default. Raises CatalogError."""
    from anabranch.s3stream.catalog.catalog import Catalog  # 0.25 s to import, and tasks rarely need it

    catalog = Catalog(location.catalog_url, read_only=read_only)
    try:
        await catalog.open(cluster=location.cluster)
        yield catalog
    finally:
        await catalog.close()
