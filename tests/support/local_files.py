"""Local files of Spark without a process for each.

PySpark comes without Hadoop's native library. Hadoop then runs `chmod` for each file and folder that it creates, and
`readlink` for each that it renames by the interface of checkpoints: some fifty processes for a micro-batch.
"""

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark

from tests.support.made_once import made_once
from tests.support.tools import java

SOURCE: Final = Path(__file__).with_name("LocalFiles.java")


def local_files() -> Mapping[str, str]:
    """Return the settings of a session whose local files are those of `LocalFiles.java`.

    They are empty where Java has no compiler: Hadoop's own files do the same.
    """
    compiler = java().with_name("javac")
    if not compiler.is_file():
        return {}
    (hadoop,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")

    def compile_it(folder: Path) -> Path:
        made = folder / "classes"
        subprocess.run([compiler, "--release", "17", "-cp", hadoop, "-d", made, SOURCE], check=True)
        return made

    version = hashlib.sha256(SOURCE.read_bytes() + hadoop.name.encode()).hexdigest()[:12]
    return {
        "spark.driver.extraClassPath": str(made_once(f"local-files-{version}", compile_it)),
        "spark.hadoop.fs.file.impl": SOURCE.stem,
        "spark.hadoop.fs.AbstractFileSystem.file.impl": f"{SOURCE.stem}$Context",
    }
