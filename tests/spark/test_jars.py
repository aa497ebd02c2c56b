from pathlib import Path

import pytest

from anabranch.spark.jars import (
    SparkVersionError,
    all_jars,
    cached,
    check_jars,
    jars_folder,
    jdbc_jars,
    kafka_source_jars,
    s3_jars,
    table_jars,
)


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
    assert cached(kafka_source_jars("4.1.3"), "4.1.3", environ) is None
    (folder / names[-1]).touch()
    assert cached(kafka_source_jars("4.1.3"), "4.1.3", environ) == [folder / name for name in names]


def test_tables_have_jars_for_their_line_of_spark() -> None:
    assert [str(jar) for jar in table_jars("4.1.3", "iceberg")] == [
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    ]
    assert table_jars("4.2.0", "parquet") == ()
    assert set(table_jars("4.1.3", "delta")) < set(all_jars("4.1.3"))
    with pytest.raises(
        SparkVersionError,
        match=r"there is no iceberg for Spark 4.2: install 'pyspark==4.1.\*', or write format delta or parquet",
    ):
        table_jars("4.2.0", "iceberg")


def test_s3_has_the_modules_of_the_sdk_that_hadoop_was_built_with() -> None:
    for version, hadoop, sdk in (("4.1.3", "3.4.2", "2.29.52"), ("4.2.0", "3.5.0", "2.35.4")):
        names = list(map(str, s3_jars(version)))
        assert names[0] == f"org.apache.hadoop:hadoop-aws:{hadoop}"
        assert f"software.amazon.awssdk:s3:{sdk}" in names
        assert not [name for name in names if ":bundle:" in name]
        assert set(s3_jars(version)) < set(all_jars(version))


def test_a_jdbc_url_names_its_driver() -> None:
    assert [jar.artifact for jar in jdbc_jars("jdbc:postgresql://db/x")] == ["postgresql"]
    assert jdbc_jars("jdbc:other://db/x") == jdbc_jars("") == ()


@pytest.mark.parametrize(
    ("jars", "words"),
    [
        ("org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.6.0", "is for Scala 2.12, but this Spark is built with"),
        ("org.apache.iceberg:iceberg-spark-runtime-3.5_2.13:1.6.0", "is for Spark 3.5, but pyspark 4.1.3 is installed"),
        ("/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar", "is for Spark 4.2, but pyspark 4.1.3"),
        ("io.delta:delta-spark_2.12:3.1.0", "is for Scala 2.12"),
        ("a:b:1, org.apache.spark:spark-avro_2.13:4.0.1", "is for Spark 4.0"),
    ],
)
def test_jars_for_another_spark_are_named(jars: str, words: str) -> None:
    with pytest.raises(SparkVersionError, match=words):
        check_jars(jars, "4.1.3")


def test_jars_that_fit_or_are_not_known_pass() -> None:
    check_jars("", "4.1.3")
    check_jars(",".join(map(str, all_jars("4.1.3"))), "4.1.3")
    check_jars(",".join(f"/jars/{jar.file_name}" for jar in all_jars("4.1.3")), "4.1.3")
    check_jars("org.postgresql:postgresql:42.7.4,/x/mine_2.12-1.0.jar", "4.1.3")
