"""Retries: the errors that are retried, and the delays."""

import random

import pytest
from aiohttp import ClientPayloadError
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from anabranch.s3stream.store.retry import FailureKind, RetryPolicy, classify


def answer(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Op")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    "error",
    [
        answer("InternalError", 500),
        answer("SlowDown", 503),
        answer("", 502),
        answer("RequestTimeout", 400),
        answer("ConditionalRequestConflict", 409),
        answer("TooManyRequests", 429),
        EndpointConnectionError(endpoint_url="u"),
        ConnectTimeoutError(endpoint_url="u"),
        ReadTimeoutError(endpoint_url="u"),
        ConnectionClosedError(endpoint_url="u"),
        ConnectionResetError(),
        TimeoutError(),
        EOFError(),
        ClientPayloadError(),
    ],
)
def test_what_heals_is_repeated(error: Exception) -> None:
    assert classify(error).retry


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("AccessDenied", 403), FailureKind.OTHER),
        (answer("SignatureDoesNotMatch", 403), FailureKind.OTHER),
        (answer("RequestTimeTooSkewed", 403), FailureKind.OTHER),
        (answer("BadDigest", 400), FailureKind.OTHER),
        (answer("InvalidPart", 400), FailureKind.OTHER),
        (answer("NotImplemented", 501), FailureKind.OTHER),
        (answer("NoSuchUpload", 404), FailureKind.NO_UPLOAD),
        (answer("NoSuchKey", 404), FailureKind.MISSING),
        (answer("404", 404), FailureKind.MISSING),
        (answer("NoSuchBucket", 404), FailureKind.OTHER),
        (answer("PreconditionFailed", 412), FailureKind.CONFLICT),
        (answer("412", 412), FailureKind.CONFLICT),
        (answer("InvalidRange", 416), FailureKind.RANGE),
        (SSLError(endpoint_url="u", error=Exception("certificate")), FailureKind.OTHER),
        (NoCredentialsError(), FailureKind.OTHER),
    ],
)
def test_what_does_not_heal_is_not_repeated(error: Exception, kind: FailureKind) -> None:
    failure = classify(error)
    assert not failure.retry
    assert failure.kind is kind


def test_backoff_doubles_with_jitter_up_to_its_bound() -> None:
    policy = RetryPolicy(attempts_max=8, backoff_ms_min=50, backoff_ms_max=5000)
    rng = random.Random(1)
    for attempt, ceiling in ((1, 50), (2, 100), (3, 200), (7, 3200), (8, 5000), (100, 5000)):
        delays = [policy.delay_seconds(attempt, rng) * 1000 for _ in range(200)]
        assert 25 <= min(delays) < max(delays) <= ceiling
        assert max(delays) > 0.9 * ceiling
