"""docs/spark.md lists every setting of a pipeline, as defined in the code."""

from pathlib import Path

from scripts.pipeline_settings import table

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_has_the_table() -> None:
    assert table() in (ROOT / "docs" / "spark.md").read_text(), "run `python -m scripts.pipeline_settings`"
