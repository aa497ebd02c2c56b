"""A multipart upload on an S3 service: its calls go through the store, which repeats and counts them."""

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, cast

from s3stream.store.body import Body
from s3stream.store.interface import PartReceipt
from s3stream.store.retry import Conflict, NoSuchUpload
from s3stream.store.rules import check_range, check_receipts
from wal.interface import Buffer

if TYPE_CHECKING:
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef

    from s3stream.store.s3 import S3Store


class S3Upload:
    """A multipart upload under way. The tag of a part is its ETag and its checksum."""

    def __init__(self, store: "S3Store", key: str, writer_id: str, upload_id: str) -> None:
        self._store = store
        self._key = key
        self._writer_id = writer_id
        self._upload_id = upload_id

    @property
    def upload_id(self) -> str:
        """The store's name for the upload."""
        return self._upload_id

    async def put_part(self, number: int, parts: Sequence[Buffer]) -> PartReceipt:
        """Send part `number` (from 1)."""
        store = self._store
        body = Body(parts)
        checksum = body.checksum()

        async def attempt() -> str:
            store.calls.bytes_written += len(body)
            answer = await store.client.upload_part(
                Bucket=store.bucket,
                Key=self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=cast("IO[bytes]", body),
                ChecksumCRC32C=checksum,
            )
            return answer["ETag"]

        etag = await store.call(self._key, "part", attempt)
        return PartReceipt(number, f"{etag} {checksum}", len(body))

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        """Make part `number` of bytes [start, end) of another object of the bucket, inside the service."""
        store = self._store
        check_range(start, end, where=f"{store.name}:{source_key}")
        answer = await store.call(
            source_key,
            "part_copy",
            lambda: store.client.upload_part_copy(
                Bucket=store.bucket,
                Key=self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                CopySource={"Bucket": store.bucket, "Key": source_key},
                CopySourceRange=f"bytes={start}-{end - 1}",
            ),
        )
        result = answer["CopyPartResult"]
        return PartReceipt(number, f"{result['ETag']} {result.get('ChecksumCRC32C', '')}", end - start)

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Make the object visible; a repetition that finds the upload gone and its own object there is a success."""
        store = self._store
        check_receipts(receipts, where=f"{store.name}:{self._key}")
        parts = [_completed_part(receipt) for receipt in receipts]
        try:
            await store.call(
                self._key,
                "multipart",
                lambda: store.client.complete_multipart_upload(
                    Bucket=store.bucket,
                    Key=self._key,
                    UploadId=self._upload_id,
                    MultipartUpload={"Parts": parts},
                    IfNoneMatch="*",
                ),
                expected=(Conflict, NoSuchUpload),
            )
        except (Conflict, NoSuchUpload) as error:
            await store.expect_own(self._key, self._writer_id, error)

    async def abort(self) -> None:
        """Give up."""
        await self._store.abort_multipart(self._key, self._upload_id)


def _completed_part(receipt: PartReceipt) -> "CompletedPartTypeDef":
    etag, _, checksum = receipt.tag.partition(" ")
    part: CompletedPartTypeDef = {"PartNumber": receipt.number, "ETag": etag}
    if checksum:
        part["ChecksumCRC32C"] = checksum
    return part
