"""Spares Spark's Python workers a tenth of a second or two of CPU for each use after their first.

Workers live on, those that plan as those that read, and between two uses they do two things that cost the more, the
more there is on their path and the more they have imported. They call `importlib.invalidate_caches`, which before
Python 3.13 reads the directory of every archive on the path again, in Python: of `pyspark.zip` and of the jar of
Spark's core, too, with thousands of entries each, which do not change while a worker lives. And they collect garbage,
for which all modules, classes and functions are looked at, which stay anyway.
"""

import gc
import sys
from functools import cache
from pathlib import PurePath
from typing import Final
from zipimport import zipimporter

ARCHIVES: Final = ("pyspark.", "py4j-", "spark-core_")
"""How the names of those begin that Spark puts on a worker's path."""


@cache
def freeze_worker() -> None:
    """Keep what this process knows of Spark's archives and what it has imported; for when all is that is needed again.

    Does something once only: what is part of a reference cycle then is never freed.
    """
    keep_archives()
    gc.freeze()


def keep_archives() -> None:
    """Let this process keep what it knows of Spark's archives."""
    for importer in sys.path_importer_cache.values():
        if isinstance(importer, zipimporter) and PurePath(importer.archive).name.startswith(ARCHIVES):
            importer.__dict__["invalidate_caches"] = _keep_cache


def _keep_cache() -> None:
    """Instead of `zipimporter.invalidate_caches`."""
