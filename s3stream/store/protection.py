"""Encryption of a bucket's objects by the service, and the account that the bucket must belong to.

Both are parameters of S3's calls: the encryption of those that create an object, the account of all. They are added
where the client makes a request from its parameters, so no call can be without them. A store without these settings
adds nothing and costs nothing.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from json import dumps
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from botocore.hooks import BaseEventHooks
    from botocore.model import OperationModel

SseAlgorithm: TypeAlias = Literal["", "AES256", "aws:kms", "aws:kms:dsse"]
SSE_ALGORITHMS: Final[tuple[str, ...]] = get_args(SseAlgorithm)
OWNER_HEADER: Final = "x-amz-expected-bucket-owner"
CHECK_KEY: Final = "encryption-check"
"""Key of the multipart upload by which the start of a node learns whether it may encrypt. It is aborted at once."""
_CREATIONS: Final = frozenset({"PutObject", "CreateMultipartUpload"})
"""Calls that take the encryption. A part is encrypted as its upload says."""
_OWNER_PARAMETERS: Final = ("ExpectedBucketOwner", "ExpectedSourceBucketOwner")
_UNSUPPORTED: Final = ("NotImplemented", "InvalidEncryptionAlgorithm", "InvalidArgument", "InvalidRequest")
_DENIED: Final = ("AccessDenied", "403", "Forbidden")
_WRITES: Final = ("put", "multipart", "part", "part_copy")


@dataclass(frozen=True, slots=True)
class BucketProtection:
    """Settings of a bucket. Fields have the names of the settings."""

    sse_algorithm: SseAlgorithm = ""
    """Value of the header x-amz-server-side-encryption. Empty: the bucket's default."""
    sse_kms_key_id: str = ""
    """Id or ARN of the KMS key. Empty: the one of the bucket's default, or of the account."""
    sse_kms_context: str = ""
    """Encryption context, NAME=VALUE,..."""
    sse_bucket_key_enabled: bool | None = None
    """True: S3 asks KMS for one key per bucket. None: as the bucket has it."""
    expected_bucket_owner: str = ""
    """Id of the account that the bucket must belong to. Empty: any."""

    def problem(self) -> tuple[str, str] | None:
        """Return the setting that is wrong and what is wrong with it, None if all are right."""
        if self.sse_algorithm not in SSE_ALGORITHMS:
            return "sse_algorithm", f"expected one of {', '.join(SSE_ALGORITHMS[1:])}, found {self.sse_algorithm!r}"
        kms = (
            ("sse_kms_key_id", bool(self.sse_kms_key_id)),
            ("sse_kms_context", bool(self.sse_kms_context)),
            ("sse_bucket_key_enabled", self.sse_bucket_key_enabled is not None),
        )
        for name, is_set in kms:
            if is_set and not self.sse_algorithm.startswith("aws:kms"):
                return name, f"needs sse_algorithm aws:kms, which is {self.sse_algorithm or 'unset'}"
        if self.sse_bucket_key_enabled and self.sse_algorithm == "aws:kms:dsse":
            return "sse_bucket_key_enabled", "aws:kms:dsse has no bucket keys"
        for pair in self._context_pairs():
            if len(pair) != 2 or not all(pair):
                return "sse_kms_context", f"expected NAME=VALUE,..., found {self.sse_kms_context!r}"
        texts = (self.sse_kms_key_id, self.sse_kms_context, self.expected_bucket_owner)
        for name, text in zip(("sse_kms_key_id", "sse_kms_context", "expected_bucket_owner"), texts, strict=True):
            if not (text.isascii() and (text.isprintable() or not text)):
                return name, f"expected printable ASCII, found {text!r}"
        return None

    def _context_pairs(self) -> list[list[str]]:
        pairs = self.sse_kms_context.split(",") if self.sse_kms_context else []
        return [[text.strip() for text in pair.split("=", 1)] for pair in pairs]

    @property
    def creation(self) -> dict[str, Any]:
        """Parameters of a call that creates an object."""
        if not self.sse_algorithm:
            return {}
        parameters: dict[str, Any] = {"ServerSideEncryption": self.sse_algorithm}
        if self.sse_kms_key_id:
            parameters["SSEKMSKeyId"] = self.sse_kms_key_id
        if self.sse_kms_context:
            context = dumps(dict(self._context_pairs()), separators=(",", ":"))
            parameters["SSEKMSEncryptionContext"] = b64encode(context.encode()).decode()
        if self.sse_bucket_key_enabled is not None:
            parameters["BucketKeyEnabled"] = self.sse_bucket_key_enabled
        return parameters

    @property
    def signed_headers(self) -> dict[str, str]:
        """Headers of a request with a signed URL, which is valid with them only."""
        return {OWNER_HEADER: self.expected_bucket_owner} if self.expected_bucket_owner else {}

    def apply(self, events: "BaseEventHooks") -> None:
        """Add the parameters to all further calls of a client, and to the URLs that it signs."""
        if self.creation or self.expected_bucket_owner:
            events.register("provide-client-params.s3", self._hook())

    def _hook(self) -> Callable[..., None]:
        creation, owner = self.creation, self.expected_bucket_owner

        def add(params: dict[str, Any], model: "OperationModel", **_: object) -> None:
            if model.name in _CREATIONS:
                params.update(creation)
            if owner and model.input_shape is not None:
                params.update((name, owner) for name in _OWNER_PARAMETERS if name in model.input_shape.members)

        return add

    def advice(self, kind: str, text: str) -> str:
        """Return the settings that a refusal may come from, to be added to its text. Empty if from none.

        `kind` is that of the call (`CallCounts`), `text` the service's error, which begins with its code.
        """
        code = text.partition(" ")[0]
        if self.sse_algorithm and kind in _WRITES:
            if code.startswith(_UNSUPPORTED):
                return f"the service does not accept the setting sse_algorithm = {self.sse_algorithm!r} or its key"
            if "kms" in text.lower():
                key = repr(self.sse_kms_key_id) if self.sse_kms_key_id else "unset: the default key"
                return (
                    f"the setting sse_kms_key_id ({key}) must name a key that these credentials may use "
                    f"(kms:GenerateDataKey, kms:Decrypt)"
                )
        if self.expected_bucket_owner and code.startswith(_DENIED):
            return (
                f"the bucket may not belong to the account of the setting expected_bucket_owner "
                f"({self.expected_bucket_owner!r}), or the credentials do not allow the call"
            )
        return ""


UNPROTECTED: Final = BucketProtection()
"""Encryption as the bucket has it, and any owner."""
