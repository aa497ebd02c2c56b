"""Configs of other resources than topics, on both databases."""

from anabranch.s3stream.catalog.catalog import Catalog


async def test_entries_are_set_unset_and_kept(url: str, catalog: Catalog) -> None:
    assert await catalog.alter_config("group", "g", set_configs={"a": "1", "b": "2"}, unset=[]) == {"a": "1", "b": "2"}
    assert await catalog.alter_config("group", "g", set_configs={"b": "3"}, unset=["a", "c"]) == {"b": "3"}
    await catalog.alter_config("feature", "g", set_configs={"level": "0"}, unset=[])
    expected = {("group", "g"): {"b": "3"}, ("feature", "g"): {"level": "0"}}
    assert await catalog.list_configs() == expected
    again = Catalog(url)
    await again.open(cluster="test")
    assert await again.list_configs() == expected
    await again.close()


async def test_a_thing_without_entries_is_forgotten(catalog: Catalog) -> None:
    await catalog.alter_config("group", "g", set_configs={"a": "1"}, unset=[])
    assert await catalog.alter_config("group", "g", set_configs={}, unset=["a"]) == {}
    assert await catalog.alter_config("group", "h", set_configs={}, unset=["a"]) == {}
    assert await catalog.list_configs() == {}
