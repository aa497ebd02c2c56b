"""What answers at an S3 endpoint, told by the text of an answer: the one to HEAD, which checks a bucket, has none.

A bucket is listed by one plain request that follows no redirect. S3 answers with a listing or with an error of its own,
as XML; whatever else comes is not S3.
"""

import re
import ssl
from dataclasses import dataclass
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout

ANSWER_BYTES_MAX: Final = 64 << 10
TIMEOUT_S: Final = 10.0
HEADERS: Final = "x-amz-"
"""What the names of S3's own headers begin with; some services send none."""
_LISTING: Final = re.compile(rb"<ListBucketResult[\s>]")
_ERROR: Final = re.compile(rb"<Error>.*?<Code>([^<]+)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """An answer to the listing of a bucket."""

    status: int
    content_type: str
    body: bytes

    @property
    def s3_error(self) -> str:
        """S3's own words for what is wrong, in one line; empty where it says nothing of the kind."""
        error = _ERROR.search(self.body)
        if error is None:
            return ""
        return " ".join(": ".join(part.decode("utf-8", "replace") for part in error.groups() if part).split()).rstrip(
            "."
        )

    @property
    def foreign_service(self) -> str:
        """What answers instead of S3, for people; empty if S3 does."""
        if self.s3_error or _LISTING.search(self.body):
            return ""
        kind = self.content_type.partition(";")[0].strip()
        return f"HTTP {self.status} {kind}".strip()


async def probe(url: str, tls: ssl.SSLContext | None) -> ProbeResponse | None:
    """Ask once, with a signed URL; None when no answer comes."""
    timeout = ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session,
            session.get(url, allow_redirects=False, ssl=True if tls is None else tls) as answer,
        ):
            body = await answer.content.read(ANSWER_BYTES_MAX)
            return ProbeResponse(answer.status, answer.headers.get("Content-Type", ""), body)
    except (TimeoutError, ClientError, OSError):
        return None
