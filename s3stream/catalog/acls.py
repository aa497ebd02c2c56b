"""Statements about access control lists. The catalog stores them; the broker interprets them."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from anabranch.s3stream.catalog.rows import ChangeKind, chunks, next_change, select_in
from anabranch.s3stream.catalog.schema import acls
from anabranch.s3stream.catalog.values import AclRow

_COLUMNS = tuple(acls.c[name] for name in AclRow._fields)


def acl_id(acl: AclRow) -> str:
    """Return the id of an ACL: a digest of its fields, so that the same ACL is stored once. Names may be long."""
    return hashlib.sha256(json.dumps(list(acl)).encode()).hexdigest()


def alter_acls(connection: Connection, added: Iterable[AclRow], removed: Collection[AclRow]) -> Sequence[AclRow]:
    """Remove ACLs that exist, then add those that do not; returns all there are then. It may be no change at all."""
    wanted = {acl_id(acl): acl for acl in added}
    unwanted = {acl_id(acl) for acl in removed} - wanted.keys()
    known = select_in(connection, select(acls.c.acl_id), acls.c.acl_id, wanted.keys() | unwanted)
    present = {row[0] for row in known}
    new, gone = [acl for key, acl in wanted.items() if key not in present], unwanted & present
    if new or gone:
        next_change(connection, ChangeKind.ACL)
        for piece in chunks(gone):
            connection.execute(delete(acls).where(acls.c.acl_id.in_(piece)))
        insert_acls(connection, new)
    return list_acls(connection)


def insert_acls(connection: Connection, wanted: Sequence[AclRow]) -> None:
    """Add ACLs, none of which exists yet."""
    for piece in chunks(_values(wanted)):
        connection.execute(insert(acls), [dict(row) for row in piece])


def list_acls(connection: Connection) -> Sequence[AclRow]:
    """Return all ACLs, by id."""
    return tuple(AclRow(*row) for row in connection.execute(select(*_COLUMNS).order_by(acls.c.acl_id)))


def _values(wanted: Sequence[AclRow]) -> Iterator[Mapping[str, Any]]:
    return ({"acl_id": acl_id(acl), **acl._asdict()} for acl in wanted)
