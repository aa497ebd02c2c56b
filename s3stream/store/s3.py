"""An object store on an S3 service, through aiobotocore.

Cost: one client and its connections for the life of the store; payloads are neither signed nor joined; CRC32C is the
only checksum (the service verifies it, so bytes damaged in transit never become an object); GETs use signed URLs and
receive bodies directly into recycled memory (`ranged_get.py`), with the general client as a fallback.

Safety: creation is conditional (`If-None-Match: *`). A call that is retried after a lost response may find the object
that it created, which the writer's id in the object's metadata distinguishes from another writer's object.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import IO, TYPE_CHECKING, cast

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.httpsession import get_cert_path
from botocore.loaders import Loader, create_loader
from botocore.utils import get_environ_proxies

from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import ObjectTooShort, StoreError
from anabranch.s3stream.store.body import RequestBody
from anabranch.s3stream.store.interface import CallCounts, MultipartUpload, StoredObject, TailRead
from anabranch.s3stream.store.protection import CHECK_KEY, UNPROTECTED, BucketProtection
from anabranch.s3stream.store.ranged_get import RangedGets, RangedResponse
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.s3stream.store.retry import BadRange, Conflict, FailureKind, RetryPolicy, classify_code
from anabranch.s3stream.store.rules import check_key, check_range
from anabranch.s3stream.store.s3_client import WRITER_KEY, BucketClient
from anabranch.s3stream.store.s3_probe import HEADERS, ProbeResponse, probe
from anabranch.s3stream.store.s3_upload import S3Upload
from anabranch.s3stream.store.signed_urls import SignedUrls, refusal
from anabranch.wal.interface import Buffer

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import (
        DeleteTypeDef,
        GetObjectOutputTypeDef,
        ListObjectsV2OutputTypeDef,
    )

DELETE_KEYS_MAX = 1000
DELETES_IN_FLIGHT = 4
NO_S3_SERVICE = "No S3 service responds there"
REFUSALS_MAX = 3
"""After this many consecutive GETs that failed by signed URL and succeeded otherwise, signed URLs are not used."""


@cache
def _models(folders: str | None) -> Loader:
    """Return botocore's models of S3, which every new client would read and parse again, by where to look for more."""
    return create_loader(folders)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Address of a bucket, limits and retries."""

    bucket: str
    endpoint: str = ""
    """URL of the service. Empty: that of the region."""
    region: str = "us-east-1"
    access_key: str = ""
    """Access key. Empty: boto finds credentials in the environment, the shared files or the instance."""
    secret_key: str = ""
    path_style: bool = True
    protection: BucketProtection = UNPROTECTED
    connections_max: int = 64
    connect_timeout_ms: int = 5_000
    read_timeout_ms: int = 30_000
    """Longest silence of the service inside a response."""
    attempt_timeout_ms: int = 120_000
    """Longest time for one attempt: a connection that accepts bytes and never responds has no other limit."""
    open_timeout_ms: int = 60_000
    """Longest time for the check of the bucket when the store is opened: the start of a node waits for it."""
    attempts_max: int = 8
    backoff_ms_min: int = 50
    backoff_ms_max: int = 5_000


class S3Store:
    """Objects in one bucket, which must exist."""

    def __init__(
        self,
        name: str,
        settings: S3Settings,
        *,
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        read_only: bool = False,
        memory: ReadBufferPool | None = None,
    ) -> None:
        """`read_only`: opening does not check whether objects may be encrypted as the settings say."""
        self._name = name
        self._read_only = read_only
        self._settings = settings
        self._bucket = BucketClient(
            settings.bucket,
            store_name=name,
            policy=RetryPolicy(settings.attempts_max, settings.backoff_ms_min, settings.backoff_ms_max),
            attempt_timeout_ms=settings.attempt_timeout_ms,
            protection=settings.protection,
            rng=rng,
            sleep=sleep,
        )
        self._calls = self._bucket.counts
        self._stack = AsyncExitStack()
        self._memory = memory or ReadBufferPool()
        self._gets: RangedGets | None = None
        """None: the general client is used for GETs."""
        self._urls = SignedUrls(self._sign)
        self._refusals = 0

    @property
    def name(self) -> str:
        """Name of the store in the catalog."""
        return self._name

    @property
    def calls(self) -> CallCounts:
        """Counters since the store was created."""
        return self._calls

    @property
    def client(self) -> "S3Client":
        """The client. Raises StoreError while the store is not open."""
        return self._bucket.client

    def uri(self, key: str) -> str:
        """Return the address of an object."""
        return f"s3://{self._settings.bucket}/{key}"

    async def open(self) -> None:
        """Connect, and check that the bucket exists and can be used. Raises StoreError."""
        settings = self._settings
        config = AioConfig(
            retries={"total_max_attempts": 1},
            max_pool_connections=settings.connections_max,
            connect_timeout=settings.connect_timeout_ms / 1000,
            read_timeout=settings.read_timeout_ms / 1000,
            signature_version="s3v4",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
            s3={"addressing_style": "path" if settings.path_style else "auto", "payload_signing_enabled": False},
        )
        session = get_session()
        session.register_component("data_loader", _models(session.get_config_variable("data_path")))
        try:
            client = await self._stack.enter_async_context(
                session.create_client(
                    "s3",
                    region_name=settings.region,
                    endpoint_url=settings.endpoint or None,
                    aws_access_key_id=settings.access_key or None,
                    aws_secret_access_key=settings.secret_key or None,
                    config=config,
                )
            )
        except ValueError as error:  # raised by the client for an invalid address or region
            raise StoreError(f"{self._name}: {error} (expected an endpoint like http://127.0.0.1:9000)") from error
        settings.protection.apply(client.meta.events)
        self._bucket.connected(client)
        where = f"bucket {settings.bucket} at {settings.endpoint or settings.region}"
        url = self.client.meta.endpoint_url
        ca_bundle = session.get_config_variable("ca_bundle") or get_cert_path(verify=True)
        tls = ssl.create_default_context(cafile=ca_bundle) if url.startswith("https:") else None
        try:
            async with asyncio.timeout(settings.open_timeout_ms / 1000):
                await self._check_bucket(where, tls)
                await self._check_encryption()
        except TimeoutError:
            await self.close()
            seconds = settings.open_timeout_ms / 1000
            raise StoreError(f"{self._name}:{where}: no answer within {seconds:g} s. {NO_S3_SERVICE}") from None
        except BaseException:
            await self.close()
            raise
        if not get_environ_proxies(url):
            self._gets = RangedGets(
                connect_timeout_s=settings.connect_timeout_ms / 1000,
                read_timeout_s=settings.read_timeout_ms / 1000,
                connections_max=settings.connections_max,
                tls=tls,
                headers=settings.protection.signed_headers,
            )

    async def _check_encryption(self) -> None:
        """Raise StoreError if the service does not encrypt objects as the settings say.

        An upload of one part is begun and aborted: it needs only the permissions for objects, and leaves nothing
        behind. Some services report how they encrypt only in the response for the part.
        """
        wanted = self._settings.protection.sse_algorithm
        if not wanted or self._read_only:
            return
        bucket = self._bucket.name
        upload = await self._bucket.call(
            CHECK_KEY, "multipart", lambda: self.client.create_multipart_upload(Bucket=bucket, Key=CHECK_KEY)
        )
        upload_id = upload["UploadId"]
        try:
            part = await self._bucket.call(
                CHECK_KEY,
                "part",
                lambda: self.client.upload_part(
                    Bucket=bucket, Key=CHECK_KEY, UploadId=upload_id, PartNumber=1, Body=b"x"
                ),
            )
        finally:
            await self.abort_multipart(CHECK_KEY, upload_id)
        found = str(part.get("ServerSideEncryption", "nothing"))
        if found != wanted:
            raise StoreError(
                f"{self._name}: the service ignores the setting sse_algorithm = {wanted!r}: it says that it encrypts "
                f"with {found}"
            )

    async def _check_bucket(self, where: str, tls: ssl.SSLContext | None) -> None:
        """Raise StoreError, in one line, if the bucket is missing, cannot be used, or is not on an S3 service."""
        try:
            head = await self._bucket.call(where, "head", lambda: self.client.head_bucket(Bucket=self._bucket.name))
        except StoreError as error:
            self._refuse_foreign_service(where, found := await self._list_plainly(tls))
            said = f" The service says {found.s3_error}." if found is not None and found.s3_error else ""
            raise StoreError(f"{error}.{said} {_advice(error)}") from error
        if not any(name.startswith(HEADERS) for name in head["ResponseMetadata"]["HTTPHeaders"]):
            self._refuse_foreign_service(where, await self._list_plainly(tls))

    async def _list_plainly(self, tls: ssl.SSLContext | None) -> ProbeResponse | None:
        """Return the response to a plain listing, None without a response or credentials."""
        try:
            url = await self.client.generate_presigned_url(
                "list_objects_v2", {"Bucket": self._bucket.name, "MaxKeys": 1}
            )
        except BotoCoreError:
            return None
        self._calls.list += 1
        return await probe(url, tls, self._settings.protection.signed_headers)

    def _refuse_foreign_service(self, where: str, found: ProbeResponse | None) -> None:
        if found is not None and found.foreign_service:
            raise StoreError(
                f"{self._name}:{where}: the service there is not S3: it responds to the listing of a bucket with "
                f"{found.foreign_service}"
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._gets is not None:
            self._gets.close()
            self._gets = None
        self._bucket.connected(None)
        await self._stack.aclose()

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        """Create the object as the concatenation of `parts`."""
        check_key(key, where=self._name)
        body = RequestBody(parts, pace)
        checksum = body.checksum()

        async def attempt() -> None:
            self._calls.bytes_written += len(body)
            await self.client.put_object(
                Bucket=self._bucket.name,
                Key=key,
                Body=cast("IO[bytes]", body),
                Metadata={WRITER_KEY: writer_id},
                IfNoneMatch="*",
                ChecksumCRC32C=checksum,
            )

        try:
            await self._bucket.call(key, "put", attempt, expected=Conflict)
        except Conflict as error:
            await self._bucket.expect_own(key, writer_id, error)

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        """Start a multipart upload."""
        check_key(key, where=self._name)
        answer = await self._bucket.call(
            key,
            "multipart",
            lambda: self.client.create_multipart_upload(
                Bucket=self._bucket.name, Key=key, Metadata={WRITER_KEY: writer_id}, ChecksumAlgorithm="CRC32C"
            ),
        )
        return S3Upload(self._bucket, key, writer_id, answer["UploadId"])

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort an upload that a crashed process left behind. An upload that does not exist is no error."""
        await self._bucket.abort_multipart(key, upload_id)

    async def get(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes [start, end)."""
        check_range(start, end, where=f"{self._name}:{key}")

        async def attempt() -> memoryview:
            return (await self._get(key, f"bytes={start}-{end - 1}"))[0]

        try:
            data = await self._bucket.call(key, "get", attempt, expected=BadRange)
        except BadRange:
            data = memoryview(b"")
        if len(data) != end - start:
            self._calls.errors += 1
            raise ObjectTooShort(
                f"{self._name}:{key}: asked for bytes [{start}, {end}), got {len(data)}: it is shorter"
            )
        return data

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        """Return the last `size_bytes`, or all of a shorter object."""

        async def attempt() -> TailRead:
            data, content_range = await self._get(key, f"bytes=-{size_bytes}")
            return TailRead(data, int(content_range.rpartition("/")[2]) if content_range else len(data))

        try:
            return await self._bucket.call(key, "get", attempt, expected=BadRange)
        except BadRange:
            # The range is invalid because the object is empty.
            return TailRead(memoryview(b""), 0)

    async def writer_id(self, key: str) -> str | None:
        """Return the id of the object's writer, None if there is no such object."""
        return await self._bucket.writer_id(key)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete in batches, several concurrently. Absent keys are no error."""
        slots = asyncio.Semaphore(DELETES_IN_FLIGHT)
        failed: dict[str, StoreError] = {}

        async def batch(some: Sequence[str]) -> None:
            async with slots:
                failed.update(await self._delete_batch(some))

        async with asyncio.TaskGroup() as group:
            for at in range(0, len(keys), DELETE_KEYS_MAX):
                group.create_task(batch(keys[at : at + DELETE_KEYS_MAX]))
        self._calls.errors += len(failed)
        return failed

    async def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """Yield all objects whose keys begin with `prefix`, in key order."""
        token = ""
        while True:
            answer = await self._bucket.call(prefix, "list", partial(self._page, prefix, token))
            for each in answer.get("Contents", ()):
                yield StoredObject(each["Key"], each["Size"], int(each["LastModified"].timestamp() * 1000))
            token = answer.get("NextContinuationToken", "")
            if not token:
                return

    async def _delete_batch(self, keys: Sequence[str]) -> dict[str, StoreError]:
        """Delete up to a thousand keys. Keys with a transient failure are retried without the others."""
        failed: dict[str, StoreError] = {}
        number = 1
        while keys:
            wanted: DeleteTypeDef = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            try:
                delete = partial(self.client.delete_objects, Bucket=self._bucket.name, Delete=wanted)
                answer = await self._bucket.call(keys[0], "delete", delete, expected=StoreError)
            except StoreError as error:
                return failed | dict.fromkeys(keys, error)
            again: list[str] = []
            for each in answer.get("Errors", ()):
                failure = classify_code(each.get("Code", ""), 0, each.get("Message", ""))
                if failure.retry and number < self._bucket.policy.attempts_max:
                    again.append(each["Key"])
                elif failure.kind is not FailureKind.MISSING:
                    failed[each["Key"]] = self._bucket.error_of(each["Key"], "delete", failure, number)
            if again:
                await self._bucket.back_off(number)
            number += 1
            keys = again
        return failed

    async def _page(self, prefix: str, token: str) -> "ListObjectsV2OutputTypeDef":
        if not token:
            return await self.client.list_objects_v2(Bucket=self._bucket.name, Prefix=prefix)
        return await self.client.list_objects_v2(Bucket=self._bucket.name, Prefix=prefix, ContinuationToken=token)

    async def _get(self, key: str, byte_range: str) -> tuple[memoryview, str]:
        """Make one attempt at a ranged GET; return the body, and the response's content range."""
        answer = None if self._gets is None else await self._get_signed(self._gets, key, byte_range)
        if answer is not None and answer.status == 206:
            self._refusals = 0
            self._calls.bytes_read += len(answer.body)
            return answer.body.toreadonly(), answer.headers.get("content-range", "")
        found = await self.client.get_object(Bucket=self._bucket.name, Key=key, Range=byte_range)
        data = await self._receive(found)
        if answer is not None:
            self._refusals += 1
            if self._refusals >= REFUSALS_MAX and self._gets is not None:
                self._gets.close()
                self._gets = None
        return data, found.get("ContentRange", "")

    async def _get_signed(self, gets: RangedGets, key: str, byte_range: str) -> RangedResponse:
        """Make one attempt with a signed URL. Raises errors that the general client would get, too; else it may try."""
        answer = await gets.get(await self._urls.of(key), byte_range, self._memory.take)
        if answer.status != 206:
            self._urls.forget(key)
            error = refusal(answer)
            if error is not None:
                raise error
            self._calls.get += 1
        return answer

    async def _sign(self, key: str, seconds: int) -> str:
        return await self.client.generate_presigned_url(
            "get_object", Params={"Bucket": self._bucket.name, "Key": key}, ExpiresIn=seconds
        )

    async def _receive(self, answer: "GetObjectOutputTypeDef") -> memoryview:
        """Receive a body into one buffer of its length."""
        size = answer["ContentLength"]
        data = self._memory.take(size)
        cursor = 0
        async with answer["Body"] as body:
            async for piece in body.raw_stream.content.iter_any():
                data[cursor : cursor + len(piece)] = piece
                cursor += len(piece)
        self._calls.bytes_read += cursor
        if cursor != size:
            raise EOFError(f"{cursor} bytes of a body of {size}")
        return data.toreadonly()


def _advice(error: StoreError) -> str:
    """Return the advice for a bucket that cannot be used."""
    match error.__cause__:
        case ClientError():  # the response to this call has no text
            return "The bucket must exist, and the credentials must be right and allow its use"
        case NoCredentialsError():
            return "Expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS's shared files, or an instance's role"
    return NO_S3_SERVICE
