"""Delegation tokens (KIP-48), listed and revoked. No answer has what a client could authenticate itself with."""

from http import HTTPStatus
from typing import Final

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model, ValidationQuery
from anabranch.s3stream.catalog.values import TokenRow as Token

TOKENS_MAX: Final = 1000
AT_ONCE_MS: Final = -1
"""Time after which a token expires that is removed."""


class TokenRow(Model):
    """A delegation token."""

    id: str
    owner: str
    """Principal that clients with the token act as."""
    requester: str
    renewers: list[str]
    issued_ms: int
    expires_ms: int
    """Time at which it expires, unless it is renewed."""
    max_ms: int
    """Time until which it can be renewed."""


class TokenList(Model):
    """All delegation tokens."""

    enabled: bool
    """False: the nodes have no secret key for tokens."""
    tokens: list[TokenRow]
    more: bool


class TokenEndpoints:
    """Endpoints of delegation tokens."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        path, query = "/delegation-tokens", ValidationQuery
        revoked = "Revoke a delegation token, whoever owns it."
        self.endpoints = [
            Endpoint("GET", path, "All delegation tokens.", self._list, TokenList),
            Endpoint("DELETE", f"{path}/{{token}}", revoked, self._revoke, TokenRow, query=query),
        ]

    async def _list(self, _: Call) -> TokenList:
        tokens = self._serving.delegation_tokens
        found = [] if tokens is None else sorted(tokens.tokens, key=lambda token: (token.owner, token.issued_ms))
        return TokenList(
            enabled=tokens is not None,
            tokens=[_row(each) for each in found[:TOKENS_MAX]],
            more=len(found) > TOKENS_MAX,
        )

    async def _revoke(self, call: Call) -> TokenRow:
        tokens, token_id = self._serving.delegation_tokens, call.path["token"]
        token = None if tokens is None else tokens.get(token_id)
        if tokens is None or token is None:
            raise ApiError(HTTPStatus.NOT_FOUND, f"there is no delegation token {token_id}")
        if not call.query.validate_only:
            # On behalf of its owner. The request itself is the audit event.
            await tokens.expire(token.owner, tokens.hmac_of(token_id), AT_ONCE_MS)
        return _row(token)


def _row(token: Token) -> TokenRow:
    return TokenRow(
        id=token.token_id,
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issued_ms=token.issued_ms,
        expires_ms=token.expires_ms,
        max_ms=token.max_ms,
    )
