"""A multipart upload on an S3 service. The bucket retries and counts its calls."""

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, cast

from anabranch.s3stream.background import Pace
from anabranch.s3stream.store.body import RequestBody
from anabranch.s3stream.store.interface import PartReceipt
from anabranch.s3stream.store.retry import Conflict, NoSuchUpload
from anabranch.s3stream.store.rules import check_range, check_receipts
from anabranch.s3stream.store.s3_client import BucketClient
from anabranch.wal.interface import Buffer

if TYPE_CHECKING:
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef


class S3Upload:
    """A multipart upload in progress. The tag of a part is its ETag and its checksum."""

    def __init__(self, bucket: BucketClient, key: str, writer_id: str, upload_id: str) -> None:
        self._bucket = bucket
        self._key = key
        self._writer_id = writer_id
        self._upload_id = upload_id

    @property
    def upload_id(self) -> str:
        """The store's id of the upload."""
        return self._upload_id

    async def put_part(self, number: int, parts: Sequence[Buffer], *, pace: Pace | None = None) -> PartReceipt:
        """Send part `number` (from 1)."""
        bucket = self._bucket
        body = RequestBody(parts, pace)
        checksum = body.checksum()

        async def attempt() -> str:
            bucket.counts.bytes_written += len(body)
            answer = await bucket.client.upload_part(
                Bucket=bucket.name,
                Key=self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=cast("IO[bytes]", body),
                ChecksumCRC32C=checksum,
            )
            return answer["ETag"]

        etag = await bucket.call(self._key, "part", attempt)
        return PartReceipt(number, f"{etag} {checksum}", len(body))

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        """Copy bytes [start, end) of another object of the bucket into part `number`, inside the service."""
        bucket = self._bucket
        check_range(start, end, where=f"{bucket.store_name}:{source_key}")
        answer = await bucket.call(
            source_key,
            "part_copy",
            lambda: bucket.client.upload_part_copy(
                Bucket=bucket.name,
                Key=self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                CopySource={"Bucket": bucket.name, "Key": source_key},
                CopySourceRange=f"bytes={start}-{end - 1}",
            ),
        )
        result = answer["CopyPartResult"]
        return PartReceipt(number, f"{result['ETag']} {result.get('ChecksumCRC32C', '')}", end - start)

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Make the object visible. A retry that finds its own object instead of the upload is a success."""
        bucket = self._bucket
        check_receipts(receipts, where=f"{bucket.store_name}:{self._key}")
        parts = [_completed_part(receipt) for receipt in receipts]
        try:
            await bucket.call(
                self._key,
                "multipart",
                lambda: bucket.client.complete_multipart_upload(
                    Bucket=bucket.name,
                    Key=self._key,
                    UploadId=self._upload_id,
                    MultipartUpload={"Parts": parts},
                    IfNoneMatch="*",
                ),
                expected=(Conflict, NoSuchUpload),
            )
        except (Conflict, NoSuchUpload) as error:
            await bucket.expect_own(self._key, self._writer_id, error)

    async def abort(self) -> None:
        """Abort the upload."""
        await self._bucket.abort_multipart(self._key, self._upload_id)


def _completed_part(receipt: PartReceipt) -> "CompletedPartTypeDef":
    etag, _, checksum = receipt.tag.partition(" ")
    part: CompletedPartTypeDef = {"PartNumber": receipt.number, "ETag": etag}
    if checksum:
        part["ChecksumCRC32C"] = checksum
    return part
