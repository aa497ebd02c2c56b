"""Delegation tokens, on both databases."""

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import TokenRow

TOKEN = TokenRow("a", "User:alice", "User:admin", ("User:spark", 'User:x,y"z'), 1000, 2000, 9000)
OTHER = TokenRow("b", "User:bob", "User:bob", (), 1500, 3000, 9000)


async def test_tokens_are_kept_changed_and_removed(url: str, catalog: Catalog) -> None:
    await catalog.create_token(OTHER)
    await catalog.create_token(TOKEN)
    assert await catalog.expire_token("a", 4000)
    again = Catalog(url)
    await again.open(cluster="test")
    assert await again.list_tokens() == (TOKEN._replace(expires_ms=4000), OTHER)
    await again.close()
    await catalog.remove_token("a")
    assert await catalog.list_tokens() == (OTHER,)


async def test_a_token_that_was_removed_stays_removed(catalog: Catalog) -> None:
    await catalog.create_token(TOKEN)
    await catalog.remove_token("a")
    assert not await catalog.expire_token("a", 8000)
    await catalog.remove_token("a")
    assert await catalog.list_tokens() == ()


async def test_those_that_have_expired_are_removed(catalog: Catalog) -> None:
    for token in (TOKEN, OTHER):
        await catalog.create_token(token)
    await catalog.remove_expired_tokens(2000)
    assert await catalog.list_tokens() == (TOKEN, OTHER)
    await catalog.remove_expired_tokens(2001)
    assert await catalog.list_tokens() == (OTHER,)


async def test_those_of_an_owner_go_with_its_last_entry(catalog: Catalog) -> None:
    for token in (TOKEN, OTHER):
        await catalog.create_token(token)
    await catalog.alter_config("scram", "alice", set_configs={"x": "1", "y": "2"}, unset=[])
    await catalog.alter_config("scram", "alice", set_configs={}, unset=["x"], token_owner="User:alice")
    assert await catalog.list_tokens() == (TOKEN, OTHER)
    await catalog.alter_config("scram", "bob", set_configs={}, unset=["x"], token_owner="User:bob")
    assert await catalog.list_tokens() == (TOKEN, OTHER), "bob had none: its tokens have another right"
    await catalog.alter_config("scram", "alice", set_configs={}, unset=["y"], token_owner="User:alice")
    assert await catalog.list_tokens() == (OTHER,)


async def test_only_changes_are_numbered(catalog: Catalog) -> None:
    await catalog.create_token(TOKEN)
    number = await catalog.last_change()
    await catalog.create_token(TOKEN._replace(expires_ms=1))
    await catalog.expire_token("none", 1)
    await catalog.remove_token("none")
    await catalog.remove_expired_tokens(2000)
    assert await catalog.last_change() == number
    assert await catalog.list_tokens() == (TOKEN,)
    await catalog.expire_token("a", 5000)
    await catalog.remove_token("a")
    assert await catalog.last_change() == number + 2
