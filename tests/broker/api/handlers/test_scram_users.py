"""Users of SCRAM: changes by the APIs, their errors, and nodes that follow."""

from pathlib import Path

from structlog.testing import capture_logs

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from anabranch.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from anabranch.s3stream.model import NodeIdentity
from tests.broker.kafka.sasl.clients import LISTENERS, PASSWORD, log_in
from tests.broker.kafka.sasl.scram_client import salted_password
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import RawClient, raw_client
from tests.support.waiting import until

SALT = b"salt"


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    salted = salted_password("SCRAM-SHA-256", PASSWORD, SALT, 4096)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted
    )


async def alter(client: RawClient, *changes: ScramCredentialUpsertion | ScramCredentialDeletion) -> dict[str, int]:
    """Change users, and return the error codes by name."""
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    return {each.user: each.error_code for each in (await client.call(request)).results}


async def test_each_user_is_changed_or_refused_by_itself(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        gone = ScramCredentialDeletion(name="gone", mechanism=1)
        found = await alter(
            client, gone, upsertion("good"), upsertion("few", iterations=1), upsertion("odd", 9), upsertion("")
        )
        assert found == {
            "gone": ErrorCode.RESOURCE_NOT_FOUND,
            "good": ErrorCode.NONE,
            "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "odd": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        }
        assert await alter(client, upsertion("good"), upsertion("good", 2)) == {"good": ErrorCode.DUPLICATE_RESOURCE}
        assert node.serving.scram.users == ["good"]
        everyone = (await client.call(DescribeUserScramCredentialsRequest(users=None))).results
        assert [(each.user, [info.iterations for info in each.credential_infos]) for each in everyone] == [
            ("good", [4096])
        ]
        wanted = DescribeUserScramCredentialsRequest(users=[UserName(name="few")])
        assert (await client.call(wanted)).results[0].error_code == ErrorCode.RESOURCE_NOT_FOUND
        with capture_logs() as logs:
            assert await alter(client, ScramCredentialDeletion(name="good", mechanism=1)) == {"good": ErrorCode.NONE}
        assert node.serving.scram.users == []
        [event] = [line for line in logs if line["event"] == "changed"]
        assert (event["resource_type"], event["resource"], event["outcome"]) == ("USER", "good", "OK")


async def test_users_may_be_changed_by_those_who_may_change_the_cluster(tmp_path: Path) -> None:
    async with running_node(tmp_path, authorizer_enabled=True) as node, raw_client(node.bootstrap) as client:
        removal = ScramCredentialDeletion(name="b", mechanism=1)
        assert await alter(client, upsertion("a"), removal) == dict.fromkeys(
            "ab", ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
        described = await client.call(DescribeUserScramCredentialsRequest(users=None))
        assert described.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert node.serving.scram.users == []


async def test_an_outage_of_the_catalog_is_answered_for_each_user(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        catalog, own = node.serving.catalog, node.serving.members.own
        catalog.act_for(NodeIdentity(own.node_id, own.epoch + 1))  # as if another process had its id
        assert await alter(client, upsertion("a")) == {"a": ErrorCode.UNKNOWN_SERVER_ERROR}
        catalog.act_for(NodeIdentity(own.node_id, own.epoch))


async def test_another_node_follows(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2, listeners=LISTENERS) as nodes:
        async with raw_client(nodes[0].bootstrap) as client:
            assert await alter(client, upsertion("alice")) == {"alice": ErrorCode.NONE}
        await until(lambda: nodes[1].serving.scram.has("SCRAM-SHA-256", "alice"), timeout_s=30)
        for node in nodes:
            async with raw_client(f"127.0.0.1:{node.ports.clients.ports['SASL_PLAINTEXT']}") as client:
                assert (await log_in(client)).error_code == ErrorCode.NONE
        hidden = [node.serving.scram.invent("SCRAM-SHA-256", "mallory") for node in nodes]
        assert hidden[0] == hidden[1], "an unknown user has the same salt on all nodes"
