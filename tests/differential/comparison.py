"""The comparison of two transcripts, given the differences that are known."""

from collections.abc import Sequence

import pytest

from tests.differential.answers import Tree, differences
from tests.differential.known_differences import Known
from tests.differential.script import Step

SHOWN_MAX = 1000


def compare(kafka: Sequence[Step], ours: Sequence[Step], known: Sequence[Known]) -> None:
    """Fail with all differences that are not known, and for entries that cover none."""
    assert [step.name for step in kafka] == [step.name for step in ours], "the script took different ways"
    used = set()
    unexpected: dict[str, list[str]] = {}
    for one, other in zip(kafka, ours, strict=True):
        for path, theirs, mine in differences(one.answer, other.answer):
            covering = next((entry for entry in known if entry.covers(one.name, path, theirs, mine)), None)
            if covering is not None:
                used.add(known.index(covering))
                continue
            what = f"{path or 'the whole'}\n    Apache Kafka: {_short(theirs)}\n    ours:         {_short(mine)}"
            unexpected.setdefault(what, []).append(one.name)
    found = [f"{what}\n    in:           {'; '.join(steps)}" for what, steps in unexpected.items()]
    if found:
        pytest.fail(f"{len(found)} differences:\n" + "\n".join(found), pytrace=False)
    gone = [f"{entry.step}: {entry.path}" for at, entry in enumerate(known) if at not in used and not entry.is_optional]
    assert not gone, f"listed as known, but these differences no longer occur: {gone}"


def _short(value: Tree) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
