"""The storage's location from options and settings files, and the part of it that tasks get."""

import pickle
from pathlib import Path

import pytest

from anabranch.s3stream.store.config import StoreConfig
from anabranch.s3stream.store.protection import BucketProtection
from anabranch.spark.direct.options import schema_of
from anabranch.spark.direct.readers import arrow_schema
from anabranch.spark.direct.source import AnabranchSource
from anabranch.spark.storage import LocationError, find_storage


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalog.db").touch()
    return tmp_path / "data"


def test_a_data_directory(data_dir: Path) -> None:
    found = find_storage({"datadir": str(data_dir), "subscribe": "t"})
    assert found.catalog_url == f"sqlite:///{data_dir / 'catalog.db'}"
    assert found.stores == (StoreConfig("local", "local", path=data_dir / "objects"),)
    assert found.cluster == "anabranch"


def test_a_settings_file_and_options_over_it(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        f'[node]\ncluster = "c"\ndata_dir = "{data_dir}"\n'
        '[objects]\nstore = "s3"\nbucket = "b"\nendpoint = "http://s3"\npath_style = false\n'
    )
    found = find_storage({"config": str(file)})
    s3 = StoreConfig("s3", "s3", bucket="b", endpoint="http://s3", path_style=False)
    assert (found.cluster, found.stores) == ("c", (s3,))
    over = find_storage({"config": str(file), "catalog": "postgresql://db/x", "objects": "s3://other", "region": "r"})
    assert over.catalog_url == "postgresql://db/x"
    assert over.stores == (StoreConfig("s3", "s3", bucket="other", endpoint="http://s3", region="r", path_style=False),)


def test_further_stores_of_a_settings_file_and_of_options(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        f'[node]\ndata_dir = "{data_dir}"\n[stores.cold]\ntype = "s3"\nbucket = "b"\npath_style = false\n'
        f'[stores.near]\ntype = "local"\npath = "{tmp_path}"\n'
    )
    _, *others = find_storage({"config": str(file), "stores.cold.bucket": "other", "stores.x.type": "s3",
                               "stores.x.bucket": "c", "stores.x.endpoint": "http://s3"}).stores  # fmt: skip
    assert others == [
        StoreConfig("cold", "s3", bucket="other", path_style=False),
        StoreConfig("near", "local", path=tmp_path),
        StoreConfig("x", "s3", bucket="c", endpoint="http://s3"),
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "no catalog is given"),
        ({"catalog": "sqlite:///x"}, "no objects are given"),
        ({"dataDir": "/nowhere"}, "no catalog in the data directory /nowhere"),
        ({"config": "/nowhere.toml"}, "No such file"),
        ({"stores.cold.type": "s3"}, "stores.cold: expected type local with a path, or s3 with a bucket"),
        ({"stores.cold.bukket": "b"}, "stores.cold.bukket: expected one of type"),
        ({"stores.local.type": "local"}, "invalid name of a further store"),
    ],
)
def test_what_is_missing_is_named(data_dir: Path, options: dict[str, str], text: str) -> None:
    named = {"dataDir": str(data_dir)} if text.startswith(("stores", "invalid name")) else {}
    with pytest.raises(LocationError, match=text):
        find_storage({**named, **options})


def test_encryption_and_owner_are_those_of_the_node(tmp_path: Path) -> None:
    bucket = 'store = "s3"\nbucket = "b"\nsse_algorithm = "aws:kms"\nsse_bucket_key_enabled = true\n'
    cold = '[stores.cold]\ntype = "s3"\nbucket = "c"\nexpected_bucket_owner = "1"\n'
    (tmp_path / "node.toml").write_text(f'[catalog]\nurl = "postgresql://db/x"\n[objects]\n{bucket}{cold}')
    options = {"config": str(tmp_path / "node.toml"), "sseKmsKeyId": "k"}
    first, second = find_storage(options).stores
    assert first.protection == BucketProtection("aws:kms", "k", sse_bucket_key_enabled=True)
    assert second.protection == BucketProtection(expected_bucket_owner="1")
    with pytest.raises(LocationError, match="sse_algorithm: expected one of AES256"):
        find_storage({**options, "sseAlgorithm": "rot13"})


def test_a_settings_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[node")
    with pytest.raises(LocationError, match=r"node\.toml"):
        find_storage({"config": str(tmp_path / "node.toml")})


def test_a_password_does_not_travel_with_a_task() -> None:
    options = {"catalog": "postgresql://user:hunter2@db/x", "objects": "s3://b", "subscribe": "t"}
    location = find_storage(options)
    assert "hunter2" in location.catalog_url
    assert location.without_password().catalog_url == "postgresql://user@db/x"
    source = AnabranchSource(options)
    assert b"hunter2" in pickle.dumps(source), "the driver needs it"
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("value", BinaryType())])
    reader = source.reader(schema)
    assert b"hunter2" not in pickle.dumps((source, reader))
    assert arrow_schema(schema).names == ["value"]
    assert schema_of(["value"]) == "`value` BINARY"
