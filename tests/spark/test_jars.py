from pathlib import Path

import pytest

from spark.jars import SparkVersionError, cached_jars, jars_folder, kafka_source_jars


def test_the_source_has_the_version_of_spark() -> None:
    source, *_ = kafka_source_jars("4.1.3")
    assert str(source) == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3"


def test_an_unknown_spark_is_named() -> None:
    with pytest.raises(SparkVersionError, match=r"pyspark 3.5.1 is installed; this project works with 4.1 and 4.2"):
        kafka_source_jars("3.5.1")


def test_cached_jars_count_only_when_all_are_there(tmp_path: Path) -> None:
    environ = {"ANABRANCH_CACHE": str(tmp_path)}
    folder = jars_folder("4.1.3", environ)
    folder.mkdir()
    names = [jar.file_name for jar in kafka_source_jars("4.1.3")]
    for name in names[:-1]:
        (folder / name).touch()
    assert cached_jars("4.1.3", environ) is None
    (folder / names[-1]).touch()
    assert cached_jars("4.1.3", environ) == [folder / name for name in names]
