"""Statements about configs of things other than topics: brokers, groups, features, client metrics subscriptions."""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, delete, insert, select

from anabranch.s3stream.catalog.rows import ChangeKind, next_change
from anabranch.s3stream.catalog.schema import configs
from anabranch.s3stream.catalog.tokens import remove_tokens_of


def alter_config(
    connection: Connection,
    kind: str,
    name: str,
    set_configs: Mapping[str, str],
    unset: Sequence[str],
    token_owner: str = "",
) -> Mapping[str, str]:
    """Change the configs of one resource; a row without entries is deleted, with the delegation tokens of an owner."""
    next_change(connection, ChangeKind.CONFIG)
    row = (configs.c.kind == kind, configs.c.name == name)
    found = connection.execute(select(configs.c.entries).where(*row)).scalar_one_or_none()
    entries: dict[str, str] = {**json.loads(found or "{}"), **set_configs}
    for key in unset:
        entries.pop(key, None)
    connection.execute(delete(configs).where(*row))
    if entries:
        values = {"kind": kind, "name": name, "entries": json.dumps(entries, sort_keys=True)}
        connection.execute(insert(configs).values(values))
    elif found is not None and token_owner:
        remove_tokens_of(connection, token_owner)
    return entries


def list_configs(connection: Connection) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Return all configs by kind and name."""
    rows = connection.execute(select(configs.c.kind, configs.c.name, configs.c.entries))
    return {(kind, name): json.loads(entries) for kind, name, entries in rows}
