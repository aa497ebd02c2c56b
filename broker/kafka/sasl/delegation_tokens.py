"""Delegation tokens (KIP-48): who may act for whom and how long, and how clients prove that they have one.

A token is an id and an HMAC (RFC 2104) of the id with the secret key of the cluster, as in Apache Kafka. A client
authenticates itself by SCRAM, with the id as its name and the HMAC in base64 as its password. The catalog keeps ids,
principals and times. The HMAC is computed when it is needed, so reading the catalog reveals no token.

Each node has a copy of all tokens in memory, and follows changes of other nodes.
"""

import asyncio
import base64
import hmac
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from anabranch.broker.kafka.catalog_copy import CatalogCopy
from anabranch.broker.kafka.sasl.scram import HASHES, ITERATIONS_MIN, ScramCredential, make_credential, salted_password
from anabranch.broker.node.settings.delegation_token_area import KEY_CHARACTERS_MIN, DelegationTokenSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.ids import uuid_text
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import TokenRow
from anabranch.s3stream.errors import StorageError

HASH: Final = "sha512"
USER: Final = "User:"
PRINCIPALS_CHARACTERS_MAX: Final = 8192
"""Characters of all principals of a token. Kafka has no limit; tokens are kept in memory by all nodes."""

_log = structlog.get_logger("node")


class TokenKeyError(OSError):
    """The secret key cannot be used. The text is the one line to show, without the key."""


def read_key(area: DelegationTokenSettings) -> bytes:
    """Return the secret key of the settings; empty if there is none. Raises TokenKeyError."""
    name = "secret_key"
    key = "" if area.secret_key is None else area.secret_key.reveal()
    if (path := area.secret_key_file) is not None:
        name = f"secret_key_file: {path}"
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text"
            raise TokenKeyError(f"setting delegation_token.{name}: {reason}") from None
        key = lines[0] if lines else ""
    if len(key) < KEY_CHARACTERS_MIN and (key or path is not None):
        raise TokenKeyError(f"setting delegation_token.{name}: the key has less than {KEY_CHARACTERS_MIN} characters")
    return key.encode()


def concerns(token: TokenRow, principal: str) -> bool:
    """Return whether a principal is the owner, the requester or a renewer of a token."""
    return principal in {token.owner, token.requester} or principal in token.renewers


class DelegationTokens(CatalogCopy[Sequence[TokenRow]]):
    """The delegation tokens of the cluster, at most `tokens_max`.

    `invent` returns a credential that no password fits, always the same for a mechanism and a name. Existing tokens
    have its salt, too, so that answers do not reveal which tokens exist.
    """

    def __init__(
        self,
        catalog: Catalog,
        area: DelegationTokenSettings,
        key: bytes,
        *,
        invent: Callable[[str, str], ScramCredential],
        now_ms: Callable[[], int],
        new_uuid: Callable[[], bytes],
    ) -> None:
        super().__init__(lambda settled: catalog.list_tokens(settled=settled), self._apply)
        self._catalog = catalog
        self._area = area
        self._key = key
        self._invent = invent
        self._now_ms = now_ms
        self._new_uuid = new_uuid
        self._tokens: dict[str, TokenRow] = {}
        self._ids: dict[bytes, str] = {}
        """Ids by HMAC."""
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        """Credentials by id and mechanism, of the tokens that clients have used on this node."""

    # reading

    @property
    def tokens(self) -> Sequence[TokenRow]:
        """All tokens, those that have expired and are not removed yet, too."""
        return list(self._tokens.values())

    def hmac_of(self, token_id: str) -> bytes:
        """Return the HMAC of a token."""
        return hmac.digest(self._key, token_id.encode(), HASH)

    def id_of(self, token_hmac: bytes) -> str:
        """Return the id of the token with an HMAC; empty if there is none."""
        return self._ids.get(bytes(token_hmac), "")

    def get(self, token_id: str) -> TokenRow | None:
        """Return a token, valid or not; None if it is unknown."""
        return self._tokens.get(token_id)

    def find(self, token_id: str) -> TokenRow | None:
        """Return a token that clients may authenticate themselves with; None if it is unknown or has expired."""
        token = self._tokens.get(token_id)
        return None if token is None or self._has_expired(token) else token

    def _has_expired(self, token: TokenRow) -> bool:
        return min(token.max_ms, token.expires_ms) < self._now_ms()

    def credential(self, mechanism: str, token_id: str) -> ScramCredential:
        """Return the credential of a token that `find` has found. The first time it takes some ms."""
        credential = self._credentials.get((token_id, mechanism))
        if credential is None:
            password = base64.b64encode(self.hmac_of(token_id)).decode()
            salt = self.invent(mechanism, token_id).salt
            salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
            credential = make_credential(mechanism, salted, salt, ITERATIONS_MIN)
            self._credentials[token_id, mechanism] = credential
        return credential

    def invent(self, mechanism: str, token_id: str) -> ScramCredential:
        """Return a credential that nothing fits, always the same for an id, on all nodes."""
        return self._invent(mechanism, f"tokenauth:{token_id}")

    # following

    def _apply(self, rows: Sequence[TokenRow]) -> None:
        wanted = {row.token_id for row in rows}
        for token_id in [each for each in self._tokens if each not in wanted]:
            self._forget(token_id)
        for row in rows:
            self._keep(row)

    def _keep(self, token: TokenRow) -> None:
        if token.token_id not in self._tokens:
            self._ids[self.hmac_of(token.token_id)] = token.token_id
        self._tokens[token.token_id] = token

    def _forget(self, token_id: str) -> None:
        del self._tokens[token_id]
        del self._ids[self.hmac_of(token_id)]
        for mechanism in HASHES:
            self._credentials.pop((token_id, mechanism), None)

    # changes

    async def create(self, owner: str, requester: str, renewers: Collection[str], max_lifetime_ms: int) -> TokenRow:
        """Create a token. A lifetime that is not positive stands for the longest one.

        Raises CatalogError, and POLICY_VIOLATION if there would be too many tokens, or too many principals.
        """
        if sum(map(len, (owner, requester, *renewers))) > PRINCIPALS_CHARACTERS_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "the principals of a delegation token are too long")
        async with self._changing():
            if len(self._tokens) >= self._area.tokens_max:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, "too many delegation tokens (delegation_token.tokens_max)")
            now_ms = self._now_ms()
            max_ms = now_ms + _at_most(self._area.max_lifetime_ms, max_lifetime_ms)
            token = TokenRow(
                self._new_id(),
                owner,
                requester,
                tuple(renewers),
                now_ms,
                min(max_ms, now_ms + self._area.expiry_time_ms),
                max_ms,
            )
            await self._answer(self._catalog.create_token(token))
            self._keep(token)
            return token

    def _new_id(self) -> str:
        """Return a new id in the form of Kafka's, which never begins with a dash."""
        while True:
            token_id = uuid_text(self._new_uuid())
            if not token_id.startswith("-"):
                return token_id

    async def renew(self, principal: str, token_hmac: bytes, period_ms: int) -> int:
        """Postpone a token's expiry, and return its new time. A period that is not positive stands for the longest one.

        Raises CatalogError, DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
        """
        async with self._changing():
            token = self._token_of(token_hmac)
            self._check_valid(token)
            _check_may_renew(token, principal)
            return await self._expire_at(token, self._now_ms() + _at_most(self._area.expiry_time_ms, period_ms))

    async def expire(self, principal: str, token_hmac: bytes, period_ms: int) -> int:
        """Let a token expire after that time, or remove it if that is negative. Returns when it expires.

        Raises as `renew`.
        """
        async with self._changing():
            token = self._token_of(token_hmac)
            _check_may_renew(token, principal)
            if period_ms >= 0:
                self._check_valid(token)
                return await self._expire_at(token, self._now_ms() + period_ms)
            now_ms = self._now_ms()
            await self._answer(self._catalog.remove_token(token.token_id))
            self._forget(token.token_id)
            return now_ms

    def _token_of(self, token_hmac: bytes) -> TokenRow:
        token = self._tokens.get(self.id_of(token_hmac))
        if token is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token

    def _check_valid(self, token: TokenRow) -> None:
        if self._has_expired(token):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)

    async def _expire_at(self, token: TokenRow, wanted_ms: int) -> int:
        expires_ms = min(token.max_ms, wanted_ms)
        is_there = await self._answer(self._catalog.expire_token(token.token_id, expires_ms))
        if not is_there:
            self._forget(token.token_id)
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        self._keep(token._replace(expires_ms=expires_ms))
        return expires_ms

    async def run(self) -> None:
        """Remove the tokens that have expired, from time to time, until cancelled."""
        while True:
            await asyncio.sleep(self._area.expiry_check_interval_ms / 1000)
            try:
                await self.remove_expired()
            except StorageError as error:
                _log.warning("expired delegation tokens cannot be removed; trying again later", reason=str(error))

    async def remove_expired(self) -> None:
        """Remove the tokens that have expired. Raises CatalogError."""
        async with self._changing():
            if any(map(self._has_expired, self._tokens.values())):
                await self._answer(self._catalog.remove_expired_tokens(self._now_ms()))
                await self._load()


def _at_most(limit_ms: int, wanted_ms: int) -> int:
    return min(limit_ms, wanted_ms) if wanted_ms > 0 else limit_ms


def _check_may_renew(token: TokenRow, principal: str) -> None:
    if principal != token.owner and principal not in token.renewers:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
