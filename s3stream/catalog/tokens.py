"""Statements about delegation tokens. The catalog stores whose they are and how long they are valid, but no secrets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from anabranch.s3stream.catalog.rows import ChangeKind, chunks, next_change
from anabranch.s3stream.catalog.schema import delegation_tokens
from anabranch.s3stream.catalog.values import TokenRow

_COLUMNS = tuple(delegation_tokens.c[name] for name in TokenRow._fields)


def create_token(connection: Connection, token: TokenRow) -> None:
    """Add a token; one that exists already is left as it is."""
    found = select(delegation_tokens.c.token_id).where(delegation_tokens.c.token_id == token.token_id)
    if connection.execute(found).scalar_one_or_none() is None:
        next_change(connection, ChangeKind.TOKEN)
        insert_tokens(connection, [token])


def expire_token(connection: Connection, token_id: str, expires_ms: int) -> bool:
    """Change the time at which a token expires; returns False if there is no such token."""
    changed = update(delegation_tokens).where(delegation_tokens.c.token_id == token_id).values(expires_ms=expires_ms)
    if not connection.execute(changed).rowcount:
        return False
    next_change(connection, ChangeKind.TOKEN)
    return True


def remove_token(connection: Connection, token_id: str) -> None:
    """Remove a token, if it exists."""
    if connection.execute(delete(delegation_tokens).where(delegation_tokens.c.token_id == token_id)).rowcount:
        next_change(connection, ChangeKind.TOKEN)


def remove_expired_tokens(connection: Connection, before_ms: int) -> None:
    """Remove the tokens that have expired before that time. Looks at the row: it may have been renewed meanwhile."""
    if connection.execute(delete(delegation_tokens).where(delegation_tokens.c.expires_ms < before_ms)).rowcount:
        next_change(connection, ChangeKind.TOKEN)


def remove_tokens_of(connection: Connection, owner: str) -> None:
    """Remove the tokens of an owner."""
    if connection.execute(delete(delegation_tokens).where(delegation_tokens.c.owner == owner)).rowcount:
        next_change(connection, ChangeKind.TOKEN)


def insert_tokens(connection: Connection, wanted: Sequence[TokenRow]) -> None:
    """Add tokens, none of which exists yet."""
    for piece in chunks(_values(token) for token in wanted):
        connection.execute(insert(delegation_tokens), [dict(row) for row in piece])


def list_tokens(connection: Connection) -> Sequence[TokenRow]:
    """Return all tokens, by id."""
    rows = connection.execute(select(*_COLUMNS).order_by(delegation_tokens.c.token_id))
    return tuple(
        TokenRow(token_id, owner, requester, tuple(json.loads(renewers)), issued_ms, expires_ms, max_ms)
        for token_id, owner, requester, renewers, issued_ms, expires_ms, max_ms in rows
    )


def _values(token: TokenRow) -> Mapping[str, Any]:
    return {**token._asdict(), "renewers": json.dumps(token.renewers)}
