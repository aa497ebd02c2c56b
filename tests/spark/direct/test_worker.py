"""A worker keeps what it knows of Spark's archives, and of no others."""

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from spark.direct.worker import keep_archives


def add(folder: Path, archive: str, module: str) -> None:
    with zipfile.ZipFile(folder / archive, "a") as made:
        made.writestr(f"{module}.py", "")


def test_only_sparks_archives_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for archive in ("pyspark.zip", "jobs.zip"):
        add(tmp_path, archive, f"first_of_{archive[:4]}")
        monkeypatch.syspath_prepend(str(tmp_path / archive))
    importlib.import_module("first_of_pysp")
    importlib.import_module("first_of_jobs")
    keep_archives()
    add(tmp_path, "pyspark.zip", "second_of_pysp")
    add(tmp_path, "jobs.zip", "second_of_jobs")
    importlib.invalidate_caches()
    importlib.import_module("second_of_jobs")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("second_of_pysp")
