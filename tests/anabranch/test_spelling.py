"""Suggestions for names that are not known."""

from anabranch.spelling import near_text


def test_near_names_are_suggested_in_any_case() -> None:
    known = ["Produce", "Fetch", "FetchSnapshot"]
    assert near_text("prodcue", known) == ". Did you mean 'Produce'?"
    assert near_text("FETCH", known) == ". Did you mean 'Fetch'?"
    assert near_text("FetchSnapshots", known) == ". Did you mean 'FetchSnapshot'?"
    assert near_text("nonsense", known) == ""
