"""Options that keep the temporary files of JVMs in a folder of the test process.

A JVM deletes them when it ends, but not when it is killed: native libraries of codecs, Spark's local folders, parts of
uploads to S3.
"""

import atexit
import shutil
import tempfile
from typing import Final

_FOLDER: Final = tempfile.mkdtemp(prefix="anabranch-java-")
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
TEMPORARY_FILES: Final = (
    f"-Djava.io.tmpdir={_FOLDER}",
    f"-Dhadoop.tmp.dir={_FOLDER}/hadoop",
    "-XX:-UsePerfData",  # which would be a file in a folder that no option changes
)
"""For every JVM of a test that has no folder of its own."""
