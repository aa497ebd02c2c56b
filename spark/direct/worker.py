"""Spares Spark's Python workers a tenth of a second or two of CPU for each task after their first.

For each task a worker calls `importlib.invalidate_caches`, and before Python 3.13 that reads the directory of every zip
archive on the path again, in Python: of `pyspark.zip` with its more than a thousand entries, too. Spark's own archives
do not change while a worker lives.
"""

import sys
from zipimport import zipimporter


def keep_archives() -> None:
    """Let this process keep what it knows of Spark's archives."""
    for path, importer in sys.path_importer_cache.items():
        if isinstance(importer, zipimporter) and ("pyspark.zip" in path or "py4j" in path):
            importer.__dict__["invalidate_caches"] = _keep


def _keep() -> None:
    """Instead of `zipimporter.invalidate_caches`."""
