"""A worker caches the contents of Spark's archives, and of no others."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from anabranch.spark.direct.worker import keep_archives


def add(folder: Path, archive: str, module: str) -> None:
    with zipfile.ZipFile(folder / archive, "a") as made:
        made.writestr(f"{module}.py", "")


def test_only_sparks_archives_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(zipimporter, "invalidate_caches", zipimporter.invalidate_caches)
    keep_archives()
    archives = {"pyspark.zip": "pyspark", "spark-core_2.13-4.1.3.jar": "core", "jobs.zip": "jobs"}
    for archive, name in archives.items():
        add(tmp_path, archive, f"first_of_{name}")
        monkeypatch.syspath_prepend(str(tmp_path / archive))
    for name in archives.values():
        importlib.import_module(f"first_of_{name}")
    for archive, name in archives.items():
        add(tmp_path, archive, f"second_of_{name}")
    importlib.invalidate_caches()
    importlib.import_module("second_of_jobs")
    for name in ("pyspark", "core"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"second_of_{name}")


def test_what_is_there_when_a_worker_is_frozen_is_never_collected_and_what_comes_later_is() -> None:
    program = (
        "import gc; from anabranch.spark.direct.worker import freeze_worker; freeze_worker(); "
        "kept = gc.get_freeze_count(); "
        "later = [[] for _ in range(1000)]; freeze_worker(); print(kept > 1000, gc.get_freeze_count() <= kept)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
