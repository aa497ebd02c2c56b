"""Writes the list of metrics: `python -m anabranch.broker.operator.admin.metrics.documentation`."""

from pathlib import Path
from typing import Final

from anabranch.broker.operator.admin.metrics.exposition import AREAS

BEGIN: Final = "<!-- Generated: `python -m anabranch.broker.operator.admin.metrics.documentation`; a test compares. -->"
END: Final = "<!-- End of the generated part. -->"
PAGE: Final = Path(__file__).resolve().parents[4] / "docs" / "monitoring.md"


def lists() -> str:
    """Return a list for each area, with its metrics but those of the internal port that listeners have as well."""
    lines = [BEGIN]
    for area in AREAS:
        title = area.__name__.rpartition(".")[2].replace("_", " ").capitalize()
        lines += ["", f"### {title}", ""]
        names = {each.name for each in area.DEFINITIONS}
        for each in area.DEFINITIONS:
            if "_internal_" in each.name and each.name.replace("_internal_", "_network_") in names:
                continue
            labels = f"{{{', '.join(each.labels)}}}" if each.labels else ""
            kind = " Histogram." if each.type == "histogram" else ""
            lines.append(f"- `{each.name}{labels}`: {each.help}{kind}")
    return "\n".join([*lines, "", END])


def page(text: str) -> str:
    """Return the page with the lists of today in their place."""
    before, _, rest = text.partition(BEGIN)
    return before + lists() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
