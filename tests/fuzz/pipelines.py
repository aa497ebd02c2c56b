"""Files of Spark pipelines (TOML): settings, or one line that names file, line and setting."""

import re
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.toml_file import read_pipeline
from tests.fuzz.target import Target, check_message
from tests.fuzz.toml_values import STRANGE, random_value
from tests.spark.pipeline.test_toml_file import FULL, SMALL

FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-pipelines-")
FILE = Path(FOLDER.name) / "pipeline.toml"


def check(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        pipeline = read_pipeline(FILE)
    except PipelineError as error:
        check_message(error)
        check_place(str(error), data)
        return
    assert pipeline.table.catalog_name is not None
    assert pipeline.dead_letter_place


def check_place(message: str, data: bytes) -> None:
    """Assert that an error begins with the file, and with a line in it if it names one."""
    place = re.match(rf"{re.escape(str(FILE))}:(\d+: )?", message)
    assert place is not None, message
    if place[1]:
        assert 1 <= int(place[1][:-2]) <= len(data.splitlines()) + 1, message


def sections() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, field in PipelineSettings.model_fields.items():
        kind: Any = next(
            (each for each in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_section(each)), None
        )
        if kind is not None:
            found[name] = list(kind.model_fields)
    return found


def _is_section(kind: object) -> bool:
    return hasattr(kind, "model_fields")


SECTIONS = sections()


def fresh(random: Random) -> bytes:
    lines = [SMALL]
    for section in random.sample(sorted(SECTIONS), random.randrange(1, 4)):
        if section in {"source", "table"}:
            continue
        lines.append(f"[{section}]")
        names = SECTIONS[section]
        lines += [f"{name} = {random_value(random)}" for name in random.sample(names, random.randrange(len(names)))]
    text = "\n".join(lines)
    for old in ('["flights"]', '"lake.db.flights"', '"checkpoint"'):
        if random.random() < 0.2:
            text = text.replace(old, random_value(random), 1)
    return text.encode()


WORDS = [
    *(f"\n[{name}]\n".encode() for name in SECTIONS),
    *(f"\n{name} = ".encode() for names in SECTIONS.values() for name in names),
    *STRANGE,
    b"[[source]]\n",
]
TARGET = Target(
    check, lambda: [SMALL.encode(), FULL.encode()], quick_inputs=600, fresh=fresh, words=WORDS, close=FOLDER.cleanup
)
