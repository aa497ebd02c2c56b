"""Check whether the service at an endpoint is S3, by the body of a response. HEAD, which checks a bucket, has none.

The bucket is listed by one plain request that follows no redirect. S3 responds with a listing or an error in XML; any
other response is not S3.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout

ANSWER_BYTES_MAX: Final = 64 << 10
TIMEOUT_S: Final = 10.0
HEADERS: Final = "x-amz-"
"""Prefix of S3's own headers. Some services send none."""
_LISTING: Final = re.compile(rb"<ListBucketResult[\s>]")
_ERROR: Final = re.compile(rb"<Error>.*?<Code>([^<]+)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """Response to the listing of a bucket."""

    status: int
    content_type: str
    body: bytes

    @property
    def s3_error(self) -> str:
        """S3's error code and message in one line; empty if the response is not an S3 error."""
        error = _ERROR.search(self.body)
        if error is None:
            return ""
        return " ".join(": ".join(part.decode("utf-8", "replace") for part in error.groups() if part).split()).rstrip(
            "."
        )

    @property
    def foreign_service(self) -> str:
        """Description of the service if it is not S3, else empty."""
        if self.s3_error or _LISTING.search(self.body):
            return ""
        kind = self.content_type.partition(";")[0].strip()
        return f"HTTP {self.status} {kind}".strip()


async def probe(url: str, tls: ssl.SSLContext | None, headers: Mapping[str, str]) -> ProbeResponse | None:
    """Request a URL once, which is signed with `headers`; return None without a response."""
    timeout = ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session,
            session.get(url, headers=headers, allow_redirects=False, ssl=True if tls is None else tls) as answer,
        ):
            body = await answer.content.read(ANSWER_BYTES_MAX)
            return ProbeResponse(answer.status, answer.headers.get("Content-Type", ""), body)
    except (TimeoutError, ClientError, OSError):
        return None
