"""Calls to the S3 server reuse the connections of earlier calls."""

import asyncio
import random
from dataclasses import replace

from anabranch.s3stream.store.s3 import S3Store
from tests.support.fault_proxy import PASS, Fault, Request, fault_proxy
from tests.support.s3 import S3Bucket

CALLS = 40
AT_ONCE = 4


async def test_calls_share_connections(bucket: S3Bucket) -> None:
    requests: list[Request] = []

    def note(request: Request) -> Fault:
        requests.append(request)
        return PASS

    async with fault_proxy(bucket.endpoint, note) as endpoint:
        store = S3Store("s3", replace(bucket.settings(), endpoint=endpoint), rng=random.Random(1))
        await store.open()
        try:
            await store.put("o", [b"0123456789" * 1000], writer_id="w")
            slots = asyncio.Semaphore(AT_ONCE)

            async def get(start: int) -> None:
                async with slots:
                    assert bytes(await store.get("o", start, start + 10)) == b"0123456789"

            async with asyncio.TaskGroup() as group:
                for number in range(CALLS):
                    _ = group.create_task(get(number * 10))
        finally:
            await store.close()
    assert sum(request.method == "GET" for request in requests) == CALLS
    assert max(request.connection for request in requests) <= 2 * AT_ONCE, "hardly more than were needed at a time"
