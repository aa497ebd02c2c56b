"""Signed URLs for GETs of objects, reused for many ranges of an object, and the meaning of their error responses."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from botocore.exceptions import ClientError

from anabranch.s3stream.store.ranged_get import RangedResponse

VALID_SECONDS = 900
USED_SECONDS = 300
"""A URL is replaced long before it expires, to allow for clock differences and slow bodies."""
URLS_MAX = 4096
_CODE = re.compile(rb"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]*)</Message>")


class SignedUrls:
    """Cache of URLs of recently read objects."""

    def __init__(self, sign: Callable[[str, int], Awaitable[str]]) -> None:
        """`sign(key, seconds)` returns a URL that is valid for that time."""
        self._sign = sign
        self._urls: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def of(self, key: str) -> str:
        """Return the URL of an object."""
        now = asyncio.get_running_loop().time()
        known = self._urls.get(key)
        if known is not None and now - known[1] < USED_SECONDS:
            self._urls.move_to_end(key)
            return known[0]
        url = await self._sign(key, VALID_SECONDS)
        self._urls[key] = (url, now)
        if len(self._urls) > URLS_MAX:
            self._urls.popitem(last=False)
        return url

    def forget(self, key: str) -> None:
        """Drop the URL of an object, because it was refused or the object is gone."""
        self._urls.pop(key, None)


def refusal(answer: RangedResponse) -> ClientError | None:
    """Return the error of a response other than 206, None if the general client should make the request.

    That client handles signatures, credentials, regions and redirects (400, 401, 403 and 3xx), and responses without a
    range.
    """
    if answer.status < 404:
        return None
    body = bytes(answer.body)
    code, message = _CODE.search(body), _MESSAGE.search(body)
    return ClientError(
        {
            "Error": {
                "Code": code[1].decode() if code else str(answer.status),
                "Message": message[1].decode() if message else "",
            },
            "ResponseMetadata": {
                "HTTPStatusCode": answer.status,
                "RequestId": answer.headers.get("x-amz-request-id", ""),
                "HostId": "",
                "HTTPHeaders": answer.headers,
                "RetryAttempts": 0,
            },
        },
        "GetObject",
    )
