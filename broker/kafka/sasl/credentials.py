"""The SCRAM credentials of the cluster's users: entries in the catalog, of which each node has a copy in memory."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.sasl.delegation_tokens import USER
from anabranch.broker.kafka.sasl.scram import (
    HASHES,
    ITERATIONS_MIN,
    ScramCredential,
    iterations_of,
    parse_credential,
    salt_of,
)

SCRAM: Final = "scram"
"""Kind of the entries: by the name of the user, a credential for each mechanism."""


class ScramCredentials:
    """Credentials by mechanism and user. `secret` returns what only the nodes of the cluster know."""

    def __init__(self, configs: ClusterConfigs, secret: Callable[[], bytes]) -> None:
        self._configs = configs
        self._secret = secret

    @property
    def users(self) -> Sequence[str]:
        """Names of the users that have credentials, in order."""
        return self._configs.names(SCRAM)

    def of_user(self, user: str) -> Mapping[str, ScramCredential]:
        """Return the credentials of a user by mechanism. Raises CredentialError."""
        entries = self._configs.get(SCRAM, user)
        return {mechanism: parse_credential(entries[mechanism]) for mechanism in HASHES if mechanism in entries}

    def iterations(self, user: str) -> Mapping[str, int | None]:
        """Return the iterations of the credentials of a user by mechanism; None: the credential is damaged."""
        entries = self._configs.get(SCRAM, user)
        return {mechanism: iterations_of(entries[mechanism]) for mechanism in HASHES if mechanism in entries}

    def has(self, mechanism: str, user: str) -> bool:
        """Return whether a user has a credential, readable or not."""
        return mechanism in self._configs.get(SCRAM, user)

    def find(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return a credential of a user; None if there is none. Raises CredentialError."""
        entry = self._configs.get(SCRAM, user).get(mechanism)
        return None if entry is None else parse_credential(entry)

    def invent(self, mechanism: str, user: str) -> ScramCredential:
        """Return a credential that no password fits, always the same for a name, on all nodes."""
        seed = hmac.digest(self._secret(), f"{mechanism}:{user}".encode(), HASHES[mechanism])
        return ScramCredential(salt_of(seed), stored_key=seed, server_key=seed, iterations=ITERATIONS_MIN)

    async def put(self, user: str, mechanism: str, credential: ScramCredential) -> None:
        """Set a credential. Raises CatalogError."""
        await self._configs.alter(SCRAM, user, set_configs={mechanism: credential.to_text()}, unset=[])

    async def remove(self, user: str, mechanism: str) -> None:
        """Remove a credential, and with the last one of a user the delegation tokens that it owns.

        Raises CatalogError.
        """
        await self._configs.alter(SCRAM, user, set_configs={}, unset=[mechanism], token_owner=f"{USER}{user}")
