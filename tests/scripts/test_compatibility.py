"""The compatibility page agrees with the code."""

from anabranch.broker.api.handlers import HANDLERS
from anabranch.protocol.registry import all_apis
from scripts.compatibility import NOTES, PAGE, page


def test_the_page_is_what_the_script_makes_of_the_code() -> None:
    assert PAGE.read_text() == page(), "run: python -m scripts.compatibility"


def test_an_api_that_is_not_served_says_why() -> None:
    assert not [api.name for key, api in all_apis().items() if key not in HANDLERS and not NOTES.get(key)]


def test_notes_are_about_apis() -> None:
    assert set(NOTES) <= set(all_apis())
