"""Encryption and owner of a bucket: what is in requests, what services do with it, the permissions of a node."""

import ast
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import anabranch.s3stream.store
from anabranch.broker.cluster.node import Node
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.config import StoreConfig, make_store
from anabranch.s3stream.store.protection import UNPROTECTED, BucketProtection
from anabranch.s3stream.store.retry import FailureKind, classify_code
from anabranch.s3stream.store.s3 import S3Store
from tests.support.fault_proxy import PASS, Fault, Request, fault_proxy
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client
from tests.support.s3 import ACCESS_KEY, S3Bucket, S3Server, minio_server, root_client, s3_server, set_credentials

REPOSITORY = Path(__file__).parents[3]
PART = 5 << 20
KMS = BucketProtection("aws:kms", "node-key", "team=a,b=c d", sse_bucket_key_enabled=True)
ACTIONS = {
    "head_bucket": "s3:ListBucket",
    "list_objects_v2": "s3:ListBucket",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "put_object": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "upload_part_copy": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "delete_objects": "s3:DeleteObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
}
"""Permissions of the calls, by the documentation of Amazon S3. Reading the source of a copied part is GetObject."""


class Recorder:
    """The requests that a proxy has passed on."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def decide(self, request: Request) -> Fault:
        self.requests.append(request)
        return PASS

    def headers(self, prefix: str) -> list[dict[str, str]]:
        """The headers of each request that begin with `prefix`."""
        return [{k: v for k, v in each.headers.items() if k.startswith(prefix)} for each in self.requests]


@asynccontextmanager
async def store_of(
    bucket: S3Bucket, protection: BucketProtection, recorder: Recorder | None = None, *, read_only: bool = False
) -> AsyncIterator[S3Store]:
    async with fault_proxy(bucket.endpoint, (recorder or Recorder()).decide) as endpoint:
        settings = replace(bucket.settings(), endpoint=endpoint, protection=protection, attempts_max=1)
        store = S3Store("s3", settings, rng=random.Random(1), read_only=read_only)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


async def use(store: S3Store, *, copies: bool = True) -> None:
    """Make every call. MinIO does not copy parts with a checksum."""
    await store.put("a", [b"x" * PART], writer_id="w")
    upload = await store.start_multipart("b", writer_id="w")
    first = upload.copy_part(1, "a", 0, PART) if copies else upload.put_part(1, [b"x" * PART])
    await upload.complete([await first, await upload.put_part(2, [b"tail"])])
    await (await store.start_multipart("c", writer_id="w")).abort()
    assert bytes(await store.get("a", 0, 3)) == b"xxx"
    assert bytes((await store.get_tail("b", 5)).data) == b"xtail"
    assert await store.writer_id("a") == "w"
    assert [each.key async for each in store.list("a")] == ["a"]
    assert await store.delete(["b"]) == {}


async def open_and_use(store: S3Store) -> None:
    await store.open()
    await store.put("0", [b"x"], writer_id="w")  # a refused PUT of megabytes may end as a lost connection
    await use(store)


async def test_unset_settings_add_nothing_to_requests(bucket: S3Bucket) -> None:
    recorder = Recorder()
    async with store_of(bucket, UNPROTECTED, recorder) as store:
        await use(store)
    assert not any(recorder.headers("x-amz-server-side"))
    assert not any(recorder.headers("x-amz-expected"))
    assert len(recorder.requests) == 12 + 1  # `use`, and a look at the bucket


async def test_every_request_names_the_owner(s3: S3Server) -> None:
    recorder, bucket = Recorder(), s3.new_bucket(has_owner=True)
    async with store_of(bucket, BucketProtection(expected_bucket_owner=ACCESS_KEY), recorder) as store:
        await use(store)
    assert recorder.headers("x-amz-expected") == [{"x-amz-expected-bucket-owner": ACCESS_KEY}] * 13
    sources = [each for each in recorder.headers("x-amz-source-expected") if each]
    assert sources == [{"x-amz-source-expected-bucket-owner": ACCESS_KEY}]


async def test_a_bucket_of_another_owner_is_refused_in_one_line(s3: S3Server) -> None:
    bucket = s3.new_bucket(has_owner=True)
    with pytest.raises(StoreError, match=r"^s3:bucket .*403.*expected_bucket_owner \('111122223333'\)[^\n]*$"):
        async with store_of(bucket, BucketProtection(expected_bucket_owner="111122223333")):
            pass


async def test_requests_that_create_an_object_say_how_it_is_encrypted(bucket: S3Bucket) -> None:
    recorder = Recorder()
    async with store_of(bucket, KMS, recorder, read_only=True) as store:  # this server would fail the check
        await use(store)
    told = [
        (each.method, each.target.partition("?")[2].partition("=")[0], headers)
        for each, headers in zip(recorder.requests, recorder.headers("x-amz-server-side"), strict=True)
        if headers
    ]
    expected = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "node-key",
        "x-amz-server-side-encryption-bucket-key-enabled": "true",
        "x-amz-server-side-encryption-context": "eyJ0ZWFtIjoiYSIsImIiOiJjIGQifQ==",  # {"team":"a","b":"c d"}
    }
    assert told == [("PUT", "", expected), ("POST", "uploads", expected), ("POST", "uploads", expected)]


async def test_a_service_that_ignores_encryption_is_refused(bucket: S3Bucket) -> None:
    with pytest.raises(StoreError, match=r"ignores the setting sse_algorithm = 'AES256': .* encrypts with nothing"):
        async with store_of(bucket, BucketProtection("AES256")):
            pass
    assert not list(bucket.folder.glob("[!.]*")), "the check leaves nothing"


@pytest.fixture(scope="module")
def encrypting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with minio_server(tmp_path_factory.mktemp("minio"), kms_key="node-key") as found:
        yield found


@pytest.mark.parametrize("protection", [BucketProtection("AES256"), KMS])
async def test_a_service_that_encrypts(encrypting: S3Bucket, protection: BucketProtection) -> None:
    async with store_of(encrypting, protection) as store:
        await use(store, copies=False)
    found = root_client(encrypting.endpoint).head_object(Bucket=encrypting.name, Key="a")
    assert found["ServerSideEncryption"] == protection.sse_algorithm
    assert found.get("SSEKMSKeyId", "").endswith(protection.sse_kms_key_id)
    root_client(encrypting.endpoint).delete_object(Bucket=encrypting.name, Key="a")


async def test_everything_that_a_node_puts_is_encrypted(
    encrypting: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_credentials(monkeypatch)
    settings = {"objects_sse_algorithm": "aws:kms", "objects_sse_kms_key_id": "node-key", "wal_kind": "object"}
    async with running_node(tmp_path, **encrypting.node_settings(), **settings) as node:
        await _write(node)
    client = root_client(encrypting.endpoint)
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=encrypting.name)["Contents"]]
    assert {key.partition("/")[0] for key in keys} >= {"wal", "manifest"}, "and objects, by number"
    for key in keys:
        assert client.head_object(Bucket=encrypting.name, Key=key)["ServerSideEncryption"] == "aws:kms", key


@pytest.mark.parametrize(
    ("protection", "text"),
    [
        (BucketProtection("aws:kms", "other"), "kms:KeyNotFound .*the setting sse_kms_key_id \\('other'\\)"),
        (BucketProtection("aws:kms:dsse"), "InvalidArgument .*the setting sse_algorithm = 'aws:kms:dsse'"),
    ],
)
async def test_a_refusal_at_the_start(encrypting: S3Bucket, protection: BucketProtection, text: str) -> None:
    with pytest.raises(StoreError, match=f"^s3:encryption-check: multipart failed: {text}[^\n]*$"):
        async with store_of(encrypting, protection):
            pass


async def test_a_service_without_keys_refuses(tmp_path: Path) -> None:
    with (
        minio_server(tmp_path) as bucket,
        pytest.raises(StoreError, match=r"NotImplemented .*KMS is not configured.*setting sse_algorithm = 'AES256'"),
    ):
        async with store_of(bucket, BucketProtection("AES256")):
            pass


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        (
            "put",
            "AccessDenied User: arn is not authorized to perform: kms:GenerateDataKey",
            "sse_kms_key_id ('node-key')",
        ),
        ("part", "KMS.DisabledException key is disabled", "sse_kms_key_id ('node-key')"),
        ("put", "InvalidEncryptionAlgorithmError not valid", "sse_algorithm = 'aws:kms'"),
        ("put", "SlowDown", ""),
        ("get", "InvalidArgument", ""),
        ("put", "AccessDenied Access Denied", ""),
    ],
)
def test_errors_name_the_setting(kind: str, text: str, advice: str) -> None:
    assert advice in KMS.advice(kind, text)
    assert bool(KMS.advice(kind, text)) == bool(advice)
    assert UNPROTECTED.advice(kind, text) == ""


def test_a_key_that_does_not_exist_is_not_a_missing_object() -> None:
    assert classify_code("kms:KeyNotFound", 404, "").kind is FailureKind.OTHER


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"sse_algorithm": "aes"}, "sse_algorithm"),
        ({"sse_kms_key_id": "k"}, "sse_kms_key_id"),
        ({"sse_algorithm": "AES256", "sse_kms_context": "a=b"}, "sse_kms_context"),
        ({"sse_algorithm": "AES256", "sse_bucket_key_enabled": False}, "sse_bucket_key_enabled"),
        ({"sse_algorithm": "aws:kms:dsse", "sse_bucket_key_enabled": True}, "sse_bucket_key_enabled"),
        ({"sse_algorithm": "aws:kms", "sse_kms_context": "a=b,c"}, "sse_kms_context"),
        ({"expected_bucket_owner": "1\r\nX: y"}, "expected_bucket_owner"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, Any], setting: str) -> None:
    protection = BucketProtection(**values)
    assert (protection.problem() or ("",))[0] == setting
    with pytest.raises(StoreError, match=setting):
        make_store(StoreConfig("s3", "s3", bucket="b", protection=protection), random.Random(1))
    assert KMS.problem() is None


# permissions


def documented_policy() -> dict[str, Any]:
    text = (REPOSITORY / "docs" / "security.md").read_text()
    found = re.search(r'```json\n(\{\n  "Version".+?)```', text, re.DOTALL)
    assert found
    policy: dict[str, Any] = json.loads(found[1])
    return policy


def calls_of_the_code() -> set[str]:
    """The client's calls that the store's source contains."""
    calls = set()
    for file in Path(anabranch.s3stream.store.__path__[0]).glob("s3*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith(".client"):
                calls.add(node.attr)
            elif isinstance(node, ast.Constant) and node.value in ACTIONS:  # an operation of a signed URL
                calls.add(node.value)
    return calls - {"meta", "generate_presigned_url"}


def test_the_documented_policy_allows_what_the_code_calls_and_no_more() -> None:
    actions: set[str] = {action for each in documented_policy()["Statement"] for action in each["Action"]}
    assert {ACTIONS[call] for call in calls_of_the_code()} == actions


def policy_for(bucket: S3Bucket, without: str = "") -> str:
    """The documented policy, for the user of a bucket."""
    policy = documented_policy()
    for statement in policy["Statement"]:
        statement["Principal"] = {"AWS": [f"user-{bucket.name}"]}
        statement["Resource"] = [each.replace("kafka-objects", bucket.name) for each in statement["Resource"]]
        statement["Action"] = [each for each in statement["Action"] if each != without]
    policy["Statement"] = [each for each in policy["Statement"] if each["Action"]]
    return json.dumps(policy)


async def test_a_node_runs_with_these_permissions_and_names_the_owner_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path, has_users=True) as server:
        bucket = server.new_bucket(has_owner=True)
        user = server.new_user(bucket, policy_for(bucket))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", user.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", user.secret_key)
        recorder = Recorder()
        async with fault_proxy(bucket.endpoint, recorder.decide) as endpoint:
            settings = bucket.node_settings() | {"objects_endpoint": endpoint, "wal_kind": "object"}
            owner = {"objects_expected_bucket_owner": ACCESS_KEY}
            async with running_node(tmp_path, **settings, **owner) as node:
                await _write(node)
        assert all(recorder.headers("x-amz-expected"))
        assert len(recorder.requests) > 5


@pytest.mark.parametrize("action", ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"])
async def test_each_permission_is_needed(users_bucket: Any, action: str) -> None:
    server, bucket = users_bucket, users_bucket.new_bucket(has_owner=True)
    user = server.new_user(bucket, policy_for(bucket, without=action))
    settings = replace(bucket.settings(), access_key=user.access_key, secret_key=user.secret_key, attempts_max=1)
    store = S3Store("s3", settings, rng=random.Random(1))
    with pytest.raises((StoreError, AssertionError)) as refused:
        await open_and_use(store)
    await store.close()
    assert "403" in str(refused.value) or "AccessDenied" in str(refused.value)


@pytest.fixture(scope="module")
def users_bucket(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with s3_server(tmp_path_factory.mktemp("users"), has_users=True) as server:
        yield server


async def _write(node: Node) -> None:
    """Let a node put records, in its log and in an object, and a manifest."""
    async with raw_client(node.bootstrap) as client:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = await client.call(CreateTopicsRequest(topics=[topic]), 7)
        assert created.topics[0].error_code == 0
        response = await client.produce("t", [batch_of(b"x" * 1000)])
        assert response.responses[0].partition_responses[0].error_code == 0
    await node.serving.storage.flush()
