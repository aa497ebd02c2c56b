"""Calls on one S3 bucket: each is counted, and retried by the policy until it succeeds or fails permanently."""

import random
from asyncio import timeout
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from aiohttp import ClientError as ClientConnectionError
from botocore.exceptions import BotoCoreError, ClientError

from anabranch.s3stream.errors import ObjectExists, ObjectNotFound, StoreError
from anabranch.s3stream.store.interface import CallCounts
from anabranch.s3stream.store.protection import BucketProtection
from anabranch.s3stream.store.retry import BadRange, Conflict, Failure, FailureKind, NoSuchUpload, RetryPolicy, classify

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

R = TypeVar("R")

WRITER_KEY: Final = "writer"
"""Key of the writer's id in an object's metadata."""
_ERROR_OF_KIND: Final = {
    FailureKind.MISSING: ObjectNotFound,
    FailureKind.CONFLICT: Conflict,
    FailureKind.NO_UPLOAD: NoSuchUpload,
    FailureKind.RANGE: BadRange,
    FailureKind.OTHER: StoreError,
}


class BucketClient:
    """A bucket of a store, with the client that reaches it. `connected` sets the client before the first call."""

    def __init__(
        self,
        name: str,
        *,
        store_name: str,
        policy: RetryPolicy,
        attempt_timeout_ms: int,
        protection: BucketProtection,
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.name: Final = name
        self.store_name: Final = store_name
        """Name of the store in the catalog, for error texts."""
        self.policy: Final = policy
        self.counts: Final = CallCounts()
        self._protection: Final = protection
        self._attempt_timeout_s: Final = attempt_timeout_ms / 1000
        self._rng: Final = rng
        self._sleep: Final = sleep
        self._client: S3Client | None = None

    @property
    def client(self) -> "S3Client":
        """The client. Raises StoreError while the store is not open."""
        if self._client is None:
            raise StoreError(f"{self.store_name}: the store is not open")
        return self._client

    def connected(self, client: "S3Client | None") -> None:
        """Use `client` for calls; None: the store is closed."""
        self._client = client

    async def call(
        self,
        key: str,
        kind: str,
        attempt: Callable[[], Awaitable[R]],
        *,
        expected: type[StoreError] | tuple[type[StoreError], ...] = (),
    ) -> R:
        """Run `attempt` until it succeeds. Raises StoreError for a permanent failure, or after the last attempt.

        Each attempt counts as a call of `kind`, a field of `CallCounts`. A final failure counts as an error unless it
        is `expected`.
        """
        number = 1
        while True:
            setattr(self.counts, kind, getattr(self.counts, kind) + 1)
            try:
                async with timeout(self._attempt_timeout_s):
                    return await attempt()
            except (ClientError, BotoCoreError, ClientConnectionError, OSError, EOFError) as cause:
                failure = classify(cause)
                if not failure.retry or number >= self.policy.attempts_max:
                    error = self.error_of(key, kind, failure, number)
                    if not isinstance(error, expected):
                        self.counts.errors += 1
                    raise error from cause
            await self.back_off(number)
            number += 1

    async def back_off(self, attempts: int) -> None:
        """Wait before the next attempt, after `attempts` failed ones."""
        self.counts.retries += 1
        await self._sleep(self.policy.delay_seconds(attempts, self._rng))

    def error_of(self, key: str, kind: str, failure: Failure, attempts: int) -> StoreError:
        """Return the error that a final failure becomes."""
        tries = f" after {attempts} attempts" if attempts > 1 else ""
        text = f"{self.store_name}:{key}: {kind.replace('_', ' ')} failed{tries}: {failure.text}"
        if advice := self._protection.advice(kind, failure.text):
            text = f"{text.rstrip('.')}. Perhaps {advice}"
        return _ERROR_OF_KIND[failure.kind](text)

    async def writer_id(self, key: str) -> str | None:
        """Return the id of the object's writer, None if there is no such object."""
        try:
            answer = await self.call(
                key,
                "head",
                lambda: self.client.head_object(Bucket=self.name, Key=key),
                expected=ObjectNotFound,
            )
        except ObjectNotFound:
            return None
        return answer["Metadata"].get(WRITER_KEY, "")

    async def expect_own(self, key: str, writer_id: str, error: StoreError) -> None:
        """Accept that the object exists if this writer made it, in an earlier attempt whose answer was lost.

        Else raises ObjectExists, or `error` if the object does not exist.
        """
        found = await self.writer_id(key)
        if found == writer_id:
            return
        self.counts.errors += 1
        if found is None:
            raise error
        raise ObjectExists(f"{self.store_name}:{key}: written by {found!r}, not {writer_id!r}") from error

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort a multipart upload. An upload that does not exist is no error."""
        try:
            await self.call(
                key,
                "multipart",
                lambda: self.client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload_id),
                expected=NoSuchUpload,
            )
        except NoSuchUpload:
            return
