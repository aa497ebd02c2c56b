"""Access control lists, on both databases."""

from typing import Any

from anabranch.s3stream.catalog.acls import acl_id
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import AclRow

READ = AclRow(2, "flights", 3, "User:a", "*", 3, 3)
WRITE = READ._replace(operation=4)
LONG = READ._replace(resource_name="n" * 20_000, principal="User:" + "p" * 20_000)


async def test_acls_are_added_once_removed_and_kept(url: str, catalog: Catalog) -> None:
    assert set(await catalog.alter_acls([READ, WRITE, READ], [])) == {READ, WRITE}
    assert len(await catalog.alter_acls([READ, LONG], [])) == 3
    assert set(await catalog.alter_acls([], [WRITE, WRITE, WRITE._replace(host="h")])) == {READ, LONG}
    again = Catalog(url)
    await again.open(cluster="test")
    assert set(await again.list_acls()) == {READ, LONG}
    await again.close()


async def test_what_is_removed_and_added_at_once_is_there(catalog: Catalog) -> None:
    await catalog.alter_acls([READ], [])
    assert await catalog.alter_acls([READ], [READ]) == (READ,)


def test_each_field_tells_acls_apart() -> None:
    changes: dict[str, Any] = {
        "resource_type": 3,
        "resource_name": "f",
        "pattern_type": 4,
        "principal": "User:b",
        "host": "h",
        "operation": 8,
        "permission": 2,
    }
    others = [READ._replace(**{field: value}) for field, value in changes.items()]
    assert len({acl_id(READ), *map(acl_id, others)}) == 8
    assert acl_id(READ._replace(principal="a", host="b,c")) != acl_id(READ._replace(principal="a,b", host="c"))
