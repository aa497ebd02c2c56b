import os
from pathlib import Path

import pytest

from anabranch.spark.java import CACHED_JAVA, JavaNotFoundError, cache_folder, find_java_home, parse_version


def fake_java(home: Path, version: str, status: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no java here", None),
    ],
)
def test_the_major_version_is_read(text: str, major: int | None) -> None:
    assert parse_version(text) == major


def test_java_home_goes_first(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "home", "17.0.1"), fake_java(tmp_path / "other", "21.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin"), "ANABRANCH_CACHE": str(tmp_path)}
    assert find_java_home(environ) == home


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.1")
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin"), "ANABRANCH_CACHE": str(tmp_path)}
    assert find_java_home(environ) == new


@pytest.mark.parametrize("java", [23, 25])
@pytest.mark.parametrize(("spark", "fits"), [("4.1.3", False), ("4.2.0.dev4", True)])
def test_a_java_that_is_too_new_for_spark_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: str, fits: bool, java: int
) -> None:
    monkeypatch.setattr("anabranch.spark.java.version", {"pyspark": spark}.__getitem__)
    new, older = fake_java(tmp_path / "new", f"{java}.0.1"), fake_java(tmp_path / "older", "21.0.1")
    environ = {"JAVA_HOME": str(new), "PATH": str(older / "bin"), "ANABRANCH_CACHE": str(tmp_path)}
    assert find_java_home(environ) == (new if fits else older)
    environ["PATH"] = str(tmp_path)
    if not fits:
        with pytest.raises(JavaNotFoundError, match=rf"needs Java 17 to 22. Found: JAVA_HOME \(.*new\): Java {java}"):
            find_java_home(environ)


def test_a_java_that_does_not_run_is_passed_over_for_the_cached_one(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "21.0.1", status=1)
    cached = fake_java(tmp_path / CACHED_JAVA, "21.0.8")
    environ = {"JAVA_HOME": str(broken), "PATH": str(tmp_path / "nothing"), "ANABRANCH_CACHE": str(tmp_path)}
    assert find_java_home(environ) == cached


def test_what_was_found_is_told_when_nothing_fits(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_292")
    environ = {"JAVA_HOME": str(old), "PATH": str(tmp_path), "ANABRANCH_CACHE": str(tmp_path)}
    with pytest.raises(JavaNotFoundError, match=r"needs Java 17 .*\. Found: JAVA_HOME \(.*old\): Java 8"):
        find_java_home(environ)


def test_the_cache_is_named_by_the_environment(tmp_path: Path) -> None:
    assert cache_folder({"ANABRANCH_CACHE": str(tmp_path)}) == tmp_path
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "anabranch"
    assert cache_folder({"HOME": os.environ["HOME"]}) == Path.home() / ".cache" / "anabranch"
