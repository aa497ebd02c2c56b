"""The quota that applies to a client, and the clients that share it: Apache Kafka's order of precedence.

    user and client id > user, any client id > user > any user, client id > any user and client id > any user
    > client id > any client id

A default applies to each client by itself: those of different users or client ids do not share it. As in Apache Kafka,
a client without a client id is subject to quotas of users only.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from anabranch.broker.kafka.quotas.entities import CLIENT_ID, USER, QuotaEntity

_ABSENT: Final = ""
"""Stands for a type that an entity does not have: names are never empty."""


class Client(NamedTuple):
    """Clients that share a quota: those of a user, of a client id, or of both. Empty: any."""

    user: str
    client_id: str


class Limit(NamedTuple):
    """A quota that applies to a client."""

    sharers: Client
    value: float


class Limits:
    """The quotas of one key, by entity."""

    def __init__(self, quotas: Mapping[QuotaEntity, float] = MappingProxyType({})) -> None:
        self._values: dict[tuple[str | None, str | None], float] = {}
        for entity, value in quotas.items():
            names = dict(entity.parts)
            self._values[names.get(USER, _ABSENT), names.get(CLIENT_ID, _ABSENT)] = value

    def __bool__(self) -> bool:
        return bool(self._values)

    def find(self, user: str, client_id: str) -> Limit | None:
        """Return the quota for a client; None if it has none."""
        values = self._values
        for key, sharers in _candidates(user, client_id):
            value = values.get(key)
            if value is not None:
                return Limit(sharers, value)
        return None

    def shared_by(self, sharers: Client) -> float | None:
        """Return the quota that clients share; None if they no longer share one."""
        user, client_id = sharers
        users = (user, None) if user else (_ABSENT,)
        client_ids = (client_id, None) if client_id else (_ABSENT,)
        values = self._values
        return next(
            (values[key] for each in users for key in ((each, name) for name in client_ids) if key in values), None
        )


def _candidates(user: str, client_id: str) -> Iterator[tuple[tuple[str | None, str | None], Client]]:
    of_user, of_both = Client(user, _ABSENT), Client(user, client_id)
    if client_id:
        yield (user, client_id), of_both
        yield (user, None), of_both
    yield (user, _ABSENT), of_user
    if client_id:
        yield (None, client_id), of_both
        yield (None, None), of_both
    yield (None, _ABSENT), of_user
    if client_id:
        of_client = Client(_ABSENT, client_id)
        yield (_ABSENT, client_id), of_client
        yield (_ABSENT, None), of_client
