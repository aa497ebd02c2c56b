"""Classification of failed S3 calls as transient or permanent, and the delay before a retry. No IO."""

import random
from dataclasses import dataclass
from enum import Enum, auto

from aiohttp import ClientError as ConnectionClientError
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError, IncompleteReadError, SSLError

from anabranch.s3stream.errors import StoreError

RETRY_CODES = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class Conflict(StoreError):
    """A conditional write found an existing object."""


class NoSuchUpload(StoreError):
    """The multipart upload was completed or aborted, or never existed."""


class BadRange(StoreError):
    """The object has no byte of the range."""


class FailureKind(Enum):
    """Meaning of a failure to the caller."""

    MISSING = auto()
    CONFLICT = auto()
    NO_UPLOAD = auto()
    RANGE = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt: its kind, whether to retry, and the error text."""

    kind: FailureKind
    retry: bool
    text: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, so that callers that failed together do not retry together."""

    attempts_max: int
    backoff_ms_min: int
    backoff_ms_max: int

    def delay_seconds(self, attempt: int, rng: random.Random) -> float:
        """Return the delay after failed attempt number `attempt` (from 1)."""
        ceiling = min(self.backoff_ms_max, self.backoff_ms_min << min(attempt - 1, 30))
        return rng.uniform(self.backoff_ms_min / 2, ceiling) / 1000


def classify(error: Exception) -> Failure:
    """Classify an exception of the client: responses by code and status, connection failures as transient.

    Refusals (403), bad checksums, unknown uploads and bad parameters are permanent and never retried.
    """
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return classify_code(code, status, error.response.get("Error", {}).get("Message", ""))
    passing = (EndpointConnectionError, HTTPClientError, IncompleteReadError, ConnectionClientError, OSError, EOFError)
    heals = isinstance(error, passing) and not isinstance(error, SSLError)
    return Failure(FailureKind.OTHER, heals, f"{type(error).__name__}: {error}")


def classify_code(code: str, status: int, message: str) -> Failure:
    """Classify an error response of the service."""
    text = f"{code or status} {message}".strip()
    if code == "NoSuchUpload":
        return Failure(FailureKind.NO_UPLOAD, retry=False, text=text)
    if code in {"PreconditionFailed", "412"} or status == 412:
        return Failure(FailureKind.CONFLICT, retry=False, text=text)
    if code in {"InvalidRange", "416"} or status == 416:
        return Failure(FailureKind.RANGE, retry=False, text=text)
    if code in RETRY_CODES or status in RETRY_STATUSES:
        return Failure(FailureKind.OTHER, retry=True, text=text)
    if code == "NoSuchBucket":  # says nothing about the object
        return Failure(FailureKind.OTHER, retry=False, text=text)
    if code.lower().startswith("kms"):  # the key cannot be used, whatever the status; the object may well exist
        return Failure(FailureKind.OTHER, retry=False, text=text)
    if code in {"NoSuchKey", "NotFound", "404"} or status == 404:
        return Failure(FailureKind.MISSING, retry=False, text=text)
    return Failure(FailureKind.OTHER, retry=False, text=text)
