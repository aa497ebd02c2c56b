"""The ways by which docs/security.md replaces the catalog's own secrets."""

from anabranch.s3stream.catalog.catalog import Catalog
from tests.support.postgres import USER, PostgresServer


async def test_two_roles_of_one_owner_use_a_catalog_in_turns(postgres: PostgresServer) -> None:
    postgres.execute("CREATE ROLE kept NOLOGIN")
    for role in ("first", "second"):
        postgres.execute(f"CREATE ROLE {role} LOGIN IN ROLE kept")
        postgres.execute(f"ALTER ROLE {role} SET role = kept")
    postgres.execute("CREATE DATABASE rotated OWNER kept")
    url = postgres.url("rotated")
    first, second = (Catalog(url.replace(f"//{USER}@", f"//{role}@")) for role in ("first", "second"))
    await first.open(cluster="c")
    await first.alter_config("scram", "alice", set_configs={"x": "1"}, unset=[])
    # Nodes with the old role and with the new one run at the same time.
    await second.open(cluster="c")
    await second.alter_config("scram", "alice", set_configs={"x": "2"}, unset=[])
    assert (await first.list_configs())["scram", "alice"] == {"x": "2"}
    await first.alter_config("scram", "alice", set_configs={"x": "3"}, unset=[])
    await first.close()
    postgres.execute("DROP ROLE first")
    assert (await second.list_configs())["scram", "alice"] == {"x": "3"}
    await second.close()
