"""Rules that name a host hold for it, however the host is written and whatever the listener shows of it."""

from pathlib import Path

import pytest

from anabranch.broker.kafka.acls.model import Acl, AclFilter, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.certificates import Authority
from tests.support.node import running_node
from tests.support.raw_client import raw_client

ALLOW = Acl(AclResourceType.TOPIC, "t", PatternType.LITERAL, ANONYMOUS, "*", AclOperation.DESCRIBE, Permission.ALLOW)
ASK = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
V4 = ("127.0.0.1", "::ffff:127.0.0.1", "::FFFF:7f00:1", "0:0:0:0:0:ffff:7f00:1")
V6 = ("::1", "0:0:0:0:0:0:0:1")


LISTENERS = (
    ("127.0.0.1", "127.0.0.1", V4, "127.0.0.2"),
    ("[::ffff:127.0.0.1]", "127.0.0.1", V4, "::1"),
    ("[::1]", "::1", V6, "127.0.0.1"),
)
"""Address of a listener, address of its client, its spellings, and an address of another client."""


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(("listens", "connects", "spellings", "another"), LISTENERS)
async def test_acls_of_a_host(
    tmp_path: Path, listens: str, connects: str, spellings: tuple[str, ...], another: str, *, tls: bool
) -> None:
    authority = Authority(tmp_path / "ca")
    settings: dict[str, object] = {"listeners": f"IN://{listens}:0"}
    if tls:
        issued = authority.issue("node")
        settings |= {"ssl_certificate_file": issued.certificate, "ssl_key_file": issued.key}
    settings["security_protocol_map"] = f"IN:{'SSL' if tls else 'PLAINTEXT'}"
    async with running_node(tmp_path, authorizer_enabled=True, **settings) as node:
        acls = node.serving.acls
        assert acls is not None
        context = authority.client_context() if tls else None
        if context is not None:
            context.check_hostname = False
        async with raw_client(f"{connects}:{node.ports.clients.ports['IN']}", context=context) as client:

            async def may_describe(*rules: Acl) -> bool:
                await acls.alter(added=rules)
                answer = await client.call(ASK, 9)
                await acls.alter(removed=rules)
                return bool(answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

            assert await may_describe(ALLOW)
            (connection,) = node.ports.clients.connections
            assert connection.host == connects, "as logs, quotas and descriptions show it"
            for host in spellings:
                deny = ALLOW._replace(host=host, permission=Permission.DENY, operation=AclOperation.ALL)
                assert not await may_describe(ALLOW, deny), host
                assert await may_describe(ALLOW._replace(host=host)), host
            deny = ALLOW._replace(host=another, permission=Permission.DENY, operation=AclOperation.ALL)
            assert await may_describe(ALLOW, deny)
            assert not await may_describe(ALLOW._replace(host=another))


def test_a_filter_finds_the_acls_of_a_host() -> None:
    for written, asked in ((one, two) for spellings in (V4, V6) for one in spellings for two in spellings):
        wanted = AclFilter(AclResourceType.ANY, None, PatternType.ANY, None, asked, AclOperation.ANY, Permission.ANY)
        assert wanted.matches(ALLOW._replace(host=written))
        assert not wanted.matches(ALLOW._replace(host="10.0.0.1"))
