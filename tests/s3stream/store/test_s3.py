"""Behaviour of the S3 store alone: lost answers, services that refuse or throttle, broken connections."""

import contextlib
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from anabranch.s3stream.errors import ObjectExists, ObjectNotFound, StoreError
from anabranch.s3stream.store.s3 import S3Settings, S3Store
from tests.s3stream.store.conftest import s3_settings
from tests.support.fault_proxy import PASS, Fault, Request, fault_proxy
from tests.support.s3 import S3Bucket

MIB = 1024 * 1024
SLOW = Fault(status=503, code="SlowDown")


class FaultPlan:
    """Faults for the next requests that match."""

    def __init__(self) -> None:
        self.plan: list[tuple[Callable[[Request], bool], Fault]] = []
        self.seen: list[Request] = []
        self.sleeps: list[float] = []

    def decide(self, request: Request) -> Fault:
        self.seen.append(request)
        for at, (matches, fault) in enumerate(self.plan):
            if matches(request):
                del self.plan[at]
                return fault
        return PASS

    def add(self, method: str, fault: Fault, times: int = 1, *, containing: str = "") -> None:
        rule = (lambda request: request.method == method and containing in request.target, fault)
        self.plan += [rule] * times

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


@contextlib.asynccontextmanager
async def faulty(
    bucket: S3Bucket, *, read_timeout_ms: int = 30_000, attempt_timeout_ms: int = 30_000
) -> AsyncIterator[tuple[S3Store, FaultPlan]]:
    """A store behind a proxy."""
    faults = FaultPlan()
    async with fault_proxy(bucket.endpoint, faults.decide) as endpoint:
        settings = replace(
            s3_settings(bucket),
            endpoint=endpoint,
            attempts_max=4,
            read_timeout_ms=read_timeout_ms,
            attempt_timeout_ms=attempt_timeout_ms,
        )
        store = S3Store("s3", settings, rng=random.Random(1), sleep=faults.sleep)
        await store.open()
        try:
            yield store, faults
            assert not faults.plan, "every fault happened"
        finally:
            await store.close()


@pytest.mark.parametrize("fault", [SLOW, Fault(status=500, code="InternalError"), Fault(reset_before=True)])
async def test_passing_failures_are_repeated(bucket: S3Bucket, prefix: str, fault: Fault) -> None:
    async with faulty(bucket) as (store, faults):
        faults.add("PUT", fault, 3)
        await store.put(prefix + "a", [b"x" * 100_000], writer_id="w")
        faults.add("GET", fault, 2)
        assert bytes(await store.get(prefix + "a", 1, 3)) == b"xx"
        faults.add("POST", fault, 1)
        assert await store.delete([prefix + "a"]) == {}
        assert (store.calls.put, store.calls.get, store.calls.delete) == (4, 3, 2)
        assert (store.calls.retries, store.calls.errors) == (6, 0)
        assert len(faults.sleeps) == store.calls.retries
        assert faults.sleeps[2] > faults.sleeps[0] * 0.5


async def test_a_service_that_never_answers_is_named_in_bounded_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = S3Settings("b", endpoint, access_key="a", secret_key="s", open_timeout_ms=500)
        store = S3Store("s3", settings, rng=random.Random(1))
        with pytest.raises(StoreError, match=rf"s3:bucket b at {endpoint}: no answer within 0\.5 s\. No S3 service"):
            await store.open()


def test_addresses_for_other_programs() -> None:
    store = S3Store("s3", S3Settings("lake"), rng=random.Random(1))
    assert store.uri("table/c/1/data/2.parquet") == "s3://lake/table/c/1/data/2.parquet"


async def test_attempts_run_out(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket) as (store, faults):
        faults.add("PUT", SLOW, 4)
        with pytest.raises(StoreError, match=r"s3:.*a: put failed after 4 attempts: SlowDown"):
            await store.put(prefix + "a", [b"x"], writer_id="w")
        assert (store.calls.retries, store.calls.errors) == (3, 1)


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "BadDigest"), (501, "NotImplemented")])
async def test_refusals_are_not_repeated(bucket: S3Bucket, prefix: str, status: int, code: str) -> None:
    async with faulty(bucket) as (store, faults):
        faults.add("PUT", Fault(status=status, code=code))
        with pytest.raises(StoreError, match=code):
            await store.put(prefix + "a", [b"x"], writer_id="w")
        assert (store.calls.put, store.calls.retries, store.calls.errors) == (1, 0, 1)


async def test_a_lost_answer_to_a_put_is_a_success(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket) as (store, faults):
        faults.add("PUT", Fault(lose_answer=True))
        await store.put(prefix + "a", [b"mine"], writer_id="w1")
        assert bytes(await store.get(prefix + "a", 0, 4)) == b"mine"
        assert (store.calls.put, store.calls.retries, store.calls.errors) == (2, 1, 0)
        faults.add("PUT", Fault(lose_answer=True))
        with pytest.raises(ObjectExists, match="'w1'"):
            await store.put(prefix + "a", [b"theirs"], writer_id="w2")


async def test_a_lost_answer_to_a_completion_is_a_success(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket) as (store, faults):
        upload = await store.start_multipart(prefix + "m", writer_id="w1")
        faults.add("PUT", Fault(lose_answer=True))
        receipts = [await upload.put_part(1, [b"1" * 5 * MIB]), await upload.put_part(2, [b"2"])]
        faults.add("POST", Fault(lose_answer=True), containing="uploadId")
        await upload.complete(receipts)
        assert (await store.get_tail(prefix + "m", 1)).size_bytes == 5 * MIB + 1
        assert (store.calls.part, store.calls.retries, store.calls.errors) == (3, 2, 0)
        await upload.abort()
        assert await store.writer_id(prefix + "m") == "w1"


async def test_an_unknown_upload_is_not_repeated(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket) as (store, _):
        upload = await store.start_multipart(prefix + "m", writer_id="w1")
        await upload.abort()
        with pytest.raises(StoreError, match="NoSuchUpload"):
            await upload.put_part(1, [b"x"])
        assert store.calls.retries == 0


async def test_a_body_cut_short_is_read_again(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket) as (store, faults):
        data = random.Random(1).randbytes(300_000)
        await store.put(prefix + "a", [data], writer_id="w")
        faults.add("GET", Fault(answer_bytes_max=100_000), 2)
        assert bytes(await store.get(prefix + "a", 0, 300_000)) == data
        assert store.calls.retries == 2


async def test_a_silent_service_times_out(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket, read_timeout_ms=1_000) as (store, faults):
        await store.put(prefix + "a", [b"x"], writer_id="w")
        faults.add("GET", Fault(hang=True))
        assert bytes(await store.get(prefix + "a", 0, 1)) == b"x"
        assert store.calls.get >= 2, "a busy machine may be silent for as long once more"


async def test_an_attempt_has_a_limit_of_its_own(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket, attempt_timeout_ms=1_000) as (store, faults):
        faults.add("PUT", Fault(hang=True))
        await store.put(prefix + "a", [b"x"], writer_id="w")
        assert store.calls.put >= 2, "a busy machine may take as long once more"


async def test_deletes_fail_key_by_key(bucket: S3Bucket, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with faulty(bucket) as (store, faults):
        asked: list[list[str]] = []

        async def delete_objects(Bucket: str, Delete: dict[str, list[dict[str, str]]]) -> object:  # noqa: N803
            keys = [each["Key"] for each in Delete["Objects"]]
            asked.append(keys)
            codes = {"busy": "SlowDown", "denied": "AccessDenied", "gone": "NoSuchKey"}
            if len(asked) > 1:
                codes.pop("busy")
            return {"Errors": [{"Key": key, "Code": codes[key]} for key in keys if key in codes]}

        monkeypatch.setattr(store.client, "delete_objects", delete_objects)
        failed = await store.delete(["a", "busy", "denied", "gone"])
        assert asked == [["a", "busy", "denied", "gone"], ["busy"]]
        assert list(failed) == ["denied"]
        assert "AccessDenied" in str(failed["denied"])
        assert (store.calls.delete, store.calls.retries, store.calls.errors) == (2, 1, 1)
        assert len(faults.sleeps) == 1


async def test_a_damaged_body_is_refused_by_the_service(
    bucket: S3Bucket, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty(bucket) as (store, _):
        monkeypatch.setattr("anabranch.s3stream.store.body.RequestBody.checksum", lambda _: "AAAAAA==")
        with pytest.raises(StoreError, match=r"put failed: "):
            await store.put(prefix + "a", [b"x"], writer_id="w")
        assert store.calls.retries == 0
        assert await store.writer_id(prefix + "a") is None


async def test_a_missing_bucket_and_a_bad_key_are_told_at_opening(bucket: S3Bucket) -> None:
    good = s3_settings(bucket)
    for settings in (replace(good, bucket="absent"), replace(good, secret_key="wrong")):
        store = S3Store("s3", settings, rng=random.Random(1))
        with pytest.raises(StoreError, match=r"s3:bucket .* at http://127.0.0.1"):
            await store.open()
        with pytest.raises(StoreError, match="not open"):
            await store.get("a", 0, 1)


async def test_an_empty_object_has_an_empty_tail(bucket: S3Bucket, prefix: str) -> None:
    async with faulty(bucket) as (store, _):
        await store.put(prefix + "a", [], writer_id="w")
        assert await store.get_tail(prefix + "a", 10) == (memoryview(b""), 0)
        with pytest.raises(ObjectNotFound):
            await store.get_tail(prefix + "b", 10)


@contextlib.contextmanager
def web_server(status: int, body: bytes, content_type: str = "text/html; charset=utf-8") -> Iterator[str]:
    """A server of HTTP that gives everybody the same answer; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", "/login")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_address[1]}"
        finally:
            web.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "content_type", "found"),
    [
        (200, b"<!doctype html><p>Welcome", "text/html; charset=utf-8", "HTTP 200 text/html"),
        (404, b"<html><body>Not Found</body></html>", "text/html", "HTTP 404 text/html"),
        (302, b"", "text/html", "HTTP 302 text/html"),
        (403, b'{"error": "who are you?"}', "application/json", "HTTP 403 application/json"),
        (501, b"", "text/plain", "HTTP 501 text/plain"),
    ],
)
async def test_a_web_server_is_not_taken_for_s3(status: int, body: bytes, content_type: str, found: str) -> None:
    with web_server(status, body, content_type) as endpoint:
        settings = S3Settings("b", endpoint, access_key="a", secret_key="s", backoff_ms_min=1, backoff_ms_max=1)
        store = S3Store("s3", settings, rng=random.Random(1))
        with pytest.raises(StoreError) as raised:
            await store.open()
    assert str(raised.value) == (
        f"s3:bucket b at {endpoint}: the service there is not S3: it responds to the listing of a bucket with {found}"
    )


async def test_a_service_that_sends_no_headers_of_amazons_is_known_by_its_listing() -> None:
    listing = b'<?xml version="1.0"?><ListBucketResult xmlns="any"><Name>b</Name></ListBucketResult>'
    with web_server(200, listing, "application/xml") as endpoint:
        store = S3Store("s3", S3Settings("b", endpoint, access_key="a", secret_key="s"), rng=random.Random(1))
        await store.open()
        await store.close()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("bucket", "The service says NoSuchBucket: "),
        ("secret_key", "The service says SignatureDoesNotMatch: "),
    ],
)
async def test_a_bucket_that_cannot_be_used_is_told_in_the_services_words(
    bucket: S3Bucket, wrong: str, expected: str
) -> None:
    right = s3_settings(bucket)
    settings = replace(right, bucket="nosuch") if wrong == "bucket" else replace(right, secret_key="wrong")
    store = S3Store("s3", settings, rng=random.Random(1))
    with pytest.raises(StoreError, match=r"s3:bucket \w+ at http://\S+: head failed: 40[34]") as raised:
        await store.open()
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
