"""The mechanisms that a node has, by their names."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.broker.kafka.sasl.credentials import ScramCredentials
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.kafka.sasl.mechanism import Mechanism
from anabranch.broker.kafka.sasl.plain import PlainExchange, PlainUsers
from anabranch.broker.kafka.sasl.scram import ScramExchange
from anabranch.broker.node.settings.mechanisms import OAUTHBEARER, PLAIN
from anabranch.broker.node.settings.sasl_area import SaslSettings, items_of
from anabranch.extras import needed

if TYPE_CHECKING:
    from anabranch.broker.kafka.sasl.jwks import Jwks
    from anabranch.broker.kafka.sasl.oauthbearer import TokenRules


@dataclass(frozen=True, slots=True)
class SaslFiles:
    """Files and URLs of the settings. None: no listener has their mechanism."""

    plain: PlainUsers | None
    keys: "Jwks | None"
    rules: "TokenRules | None"

    def keep_current(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Read them again when they change. `spawn` runs a coroutine as a task."""
        if self.plain is not None:
            spawn(self.plain.run())
        if self.keys is not None:
            spawn(self.keys.run())


def open_files(area: SaslSettings, random_bytes: Callable[[int], bytes]) -> SaslFiles:
    """Read the files. Raises UsersFileError, JwksError, MissingExtra."""
    plain = None if area.plain_users_file is None else PlainUsers(area.plain_users_file, random_bytes)
    if not area.oauthbearer_jwks_url:
        return SaslFiles(plain=plain, keys=None, rules=None)
    with needed("the mechanism OAUTHBEARER"):
        from anabranch.broker.kafka.sasl.jwks import Jwks
        from anabranch.broker.kafka.sasl.oauthbearer import TokenRules
    refresh_s = area.oauthbearer_jwks_refresh_ms / 1000
    keys = Jwks(area.oauthbearer_jwks_url, refresh_s=refresh_s, clock=asyncio.get_running_loop().time)
    rules = TokenRules(
        issuer=area.oauthbearer_expected_issuer,
        audiences=items_of(area.oauthbearer_expected_audience),
        scopes=items_of(area.oauthbearer_required_scopes),
        scope_claim=area.oauthbearer_scope_claim_name,
        user_claim=area.oauthbearer_sub_claim_name,
        clock_skew_s=area.oauthbearer_clock_skew_s,
    )
    return SaslFiles(plain=plain, keys=keys, rules=rules)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """Users, their passwords and tokens and the keys for these, and the means to check them."""

    scram: ScramCredentials
    tokens: DelegationTokens | None
    files: SaslFiles
    random_bytes: Callable[[int], bytes]
    now_ms: Callable[[], int]

    def begin(self, mechanism: str, host: str) -> Mechanism:
        """Begin an exchange with a client at an address."""
        files = self.files
        if mechanism == PLAIN:
            assert files.plain is not None, "checked with the settings"
            return PlainExchange(files.plain, host)
        if mechanism == OAUTHBEARER:
            assert files.keys is not None, "checked with the settings"
            assert files.rules is not None, "checked with the settings"
            from anabranch.broker.kafka.sasl.oauthbearer import OauthExchange  # needs an extra

            return OauthExchange(files.keys, files.rules, self.now_ms)
        return ScramExchange(mechanism, self.scram, self.random_bytes, self.tokens)
