"""The compatibility page agrees with the code."""

from kio.schema.index import api_key_map, schema_name_map

from anabranch.broker.api.handlers import HANDLERS
from scripts import kafka_releases_page
from scripts.compatibility import NOT_SERVED, NOTES, PAGE, page, versions


def test_the_pages_are_what_the_script_makes_of_the_code() -> None:
    assert PAGE.read_text() == page(), "run: python -m scripts.compatibility"
    assert kafka_releases_page.PAGE.read_text() == kafka_releases_page.page(), "run: python -m scripts.compatibility"


def test_an_api_that_is_not_served_has_the_name_and_versions_of_an_independent_list() -> None:
    assert not NOT_SERVED.keys() & HANDLERS.keys()
    for key, api in NOT_SERVED.items():
        schema = api_key_map[key]
        assert api.name == "".join(map(str.capitalize, schema.split("_")))
        assert api.kafka_versions == versions(min(schema_name_map[schema]), max(schema_name_map[schema]))


def test_notes_are_about_apis() -> None:
    assert NOTES.keys() <= HANDLERS.keys()
