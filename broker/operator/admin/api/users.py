"""Users of SASL/SCRAM, changed by the same requests that Kafka's tools send (KIP-554).

A password is salted as soon as it has arrived, and kept nowhere. No answer has a password, or anything made of one.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr

from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.sasl.delegation_tokens import USER
from anabranch.broker.kafka.sasl.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN
from anabranch.broker.kafka.sasl.user_requests import (
    SEED_BYTES,
    check_user_name,
    put_request,
    remove_request,
    salt_password,
)
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model, ValidationQuery, check
from anabranch.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest

USERS_MAX: Final = 2000
Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


def _user_name(name: str) -> str:
    check_user_name(name)
    return name


def _password(given: SecretStr) -> SecretStr:
    if not given.get_secret_value():
        raise ValueError("the password is empty")
    return given


Password = Annotated[SecretStr, AfterValidator(_password)]
Mechanisms = Annotated[list[Mechanism], Field(min_length=1)]
Iterations = Annotated[int, Field(ge=ITERATIONS_MIN, le=ITERATIONS_MAX)]


class Credential(Model):
    """A mechanism by which a user can authenticate itself."""

    mechanism: str
    iterations: int | None
    """Iterations of the hash that protects the password; null: the credential is damaged, and admits nobody."""


class UserRow(Model):
    """A user and its credentials."""

    name: str
    credentials: list[Credential]


class UserList(Model):
    """All users."""

    users: list[UserRow]
    more: bool


class UserCreation(Model):
    """A user to create."""

    name: Annotated[str, Field(max_length=1024), AfterValidator(_user_name)]
    password: Password
    mechanisms: Mechanisms | None = None
    """By default all."""
    iterations: Iterations = ITERATIONS_MIN
    validate_only: bool = False


class PasswordChange(Model):
    """A new password of a user."""

    password: Password
    mechanisms: Mechanisms | None = None
    """By default those that the user has. Each mechanism has a password of its own."""
    iterations: Iterations | None = None
    """By default those of the credential, so that a change does not weaken it."""
    validate_only: bool = False


class DeletedUser(Model):
    """A user that is deleted, or would be, with what goes and what stays."""

    mechanisms: list[str]
    tokens: int
    """Delegation tokens of the user, which are removed with its last credential."""
    acls: int
    """ACLs that name the user. They stay, for another user of this name, too."""


class UserEndpoints:
    """Endpoints of users. `random_bytes` returns that many unpredictable bytes."""

    def __init__(self, serving: Serving, local: LocalRequests, random_bytes: Callable[[int], bytes]) -> None:
        self._serving = serving
        self._local = local
        self._random_bytes = random_bytes
        path = "/users/{user}"
        new_password = "Set a new password of a user."  # noqa: S105 - a summary
        self.endpoints = [
            Endpoint("GET", "/users", "All users of SASL/SCRAM.", self._list, UserList),
            Endpoint("POST", "/users", "Create a user.", self._create, UserRow, body=UserCreation),
            Endpoint("PATCH", path, new_password, self._change, UserRow, body=PasswordChange),
            Endpoint("DELETE", path, "Delete a user.", self._delete, DeletedUser, query=ValidationQuery),
        ]

    async def _list(self, _: Call) -> UserList:
        scram = self._serving.scram
        names = scram.users
        return UserList(
            users=[_row(name, scram.iterations(name)) for name in names[:USERS_MAX]], more=len(names) > USERS_MAX
        )

    async def _create(self, call: Call) -> UserRow:
        wanted: UserCreation = call.body
        if self._serving.scram.iterations(wanted.name):
            raise ApiError(HTTPStatus.CONFLICT, f"user {wanted.name} exists: its password can be changed")
        credentials = dict.fromkeys(wanted.mechanisms or HASHES, wanted.iterations)
        if not wanted.validate_only:
            await self._put(wanted.name, wanted.password, credentials, call.user)
        return _row(wanted.name, credentials)

    async def _change(self, call: Call) -> UserRow:
        wanted: PasswordChange = call.body
        name = call.path["user"]
        present = self._present(name)
        credentials = {
            each: wanted.iterations or present.get(each) or ITERATIONS_MIN for each in wanted.mechanisms or present
        }
        if not wanted.validate_only:
            await self._put(name, wanted.password, credentials, call.user)
        return _row(name, credentials)

    async def _delete(self, call: Call) -> DeletedUser:
        name = call.path["user"]
        principal = f"{USER}{name}"
        tokens, acls = self._serving.delegation_tokens, self._serving.acls
        mechanisms = list(self._present(name))
        found = DeletedUser(
            mechanisms=mechanisms,
            tokens=0 if tokens is None else sum(token.owner == principal for token in tokens.tokens),
            acls=0 if acls is None else sum(acl.principal == principal for acl in acls.authorizer.acls),
        )
        if not call.query.validate_only:
            for each in mechanisms:
                await self._alter(remove_request(name, each), call.user)
        return found

    def _present(self, name: str) -> Mapping[str, int | None]:
        """Return the iterations of a user's credentials by mechanism. Raises ApiError if there is no such user."""
        found = self._serving.scram.iterations(name)
        if not found:
            raise ApiError(HTTPStatus.NOT_FOUND, f"user {name} does not exist")
        return found

    async def _put(self, name: str, password: SecretStr, credentials: Mapping[str, int], user: User) -> None:
        """Set one credential after the other: a request may change a user only once. Raises KafkaError."""
        for mechanism, iterations in credentials.items():
            seed, text = self._random_bytes(SEED_BYTES), password.get_secret_value()
            salted = await asyncio.to_thread(salt_password, mechanism, text, iterations, seed)  # it takes some ms
            await self._alter(put_request(name, salted), user)

    async def _alter(self, request: AlterUserScramCredentialsRequest, user: User) -> None:
        (result,) = (await self._local.call(request, user)).results
        check(result.error_code, result.error_message)


def _row(name: str, credentials: Mapping[str, int | None]) -> UserRow:
    return UserRow(
        name=name, credentials=[Credential(mechanism=each, iterations=count) for each, count in credentials.items()]
    )
