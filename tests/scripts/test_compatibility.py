"""The compatibility page agrees with the code."""

import re

import pytest

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.releases import read_lines
from anabranch.broker.node.settings.known import KAFKA_RELEASES
from scripts import kafka_releases_page
from scripts.compatibility import NOT_SERVED, NOTES, PAGE, page

ROOT = PAGE.parents[1]


def test_the_pages_are_what_the_script_makes_of_the_code() -> None:
    assert PAGE.read_text() == page(), "run: python -m scripts.compatibility"
    assert kafka_releases_page.PAGE.read_text() == kafka_releases_page.page(), "run: python -m scripts.compatibility"


def test_every_api_of_the_newest_release_is_served_or_has_a_reason() -> None:
    released = {line.key for line in read_lines() if line.key is not None and KAFKA_RELEASES[-1] in line.values}
    assert released == HANDLERS.keys() | NOT_SERVED.keys()
    assert not NOT_SERVED.keys() & HANDLERS.keys()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_the_number_of_apis_is_that_of_the_handlers(name: str) -> None:
    numbers = re.findall(r"(\d+) (?:APIs|of Kafka's APIs)", (ROOT / name).read_text())
    assert numbers == [str(len(HANDLERS))]


def test_notes_are_about_apis() -> None:
    assert NOTES.keys() <= HANDLERS.keys()
