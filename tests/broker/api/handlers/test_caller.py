"""A request may name any number of resources that its client may not use: what is decided and logged stays bounded."""

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.logging.audit import EVENTS_MAX, AuditLog

BOB: Any = Acl(AclResourceType.TOPIC, "a", PatternType.LITERAL, "User:bob", "*", AclOperation.READ, Permission.ALLOW)


def test_denials_of_who_has_no_rights_cost_one_decision_and_a_hundred_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    authorizer = Authorizer()
    authorizer.replace([BOB])
    decided: list[str] = []
    authorize = authorizer.authorize

    def counted(principal: str, host: str, operation: Any, kind: Any, name: str) -> bool:
        decided.append(name)
        return authorize(principal, host, operation, kind, name)

    monkeypatch.setattr(authorizer, "authorize", counted)
    now_s = [0.0]
    serving: Any = SimpleNamespace(audit=AuditLog(lambda: now_s[0], lambda: 0))
    client = SimpleNamespace(principal="User:mallory", host="192.0.2.1")
    exchange: Any = SimpleNamespace(api_version=12, api_key=3, connection=client)
    caller = Caller(serving, exchange, authorizer)
    with capture_logs() as logs:
        assert caller.topics(AclOperation.READ, (f"t{at}" for at in range(1000))) == set()
        assert not caller.may_group(AclOperation.READ, "g")
    assert len(logs) == EVENTS_MAX
    assert len(decided) == 2, "one for topics, one for groups"
    now_s[0] = 1.0
    with capture_logs() as logs:
        assert not Caller(serving, exchange, authorizer).may_topic(AclOperation.READ, "t")
        authorizer.replace([BOB._replace(principal="User:mallory")])
        assert caller.may_topic(AclOperation.READ, "a"), "another version of the ACLs counts at once"
    assert [line["left_out"] for line in logs] == [901]


@pytest.mark.parametrize("who", ["User:mallory", "User:*"])
def test_rights_of_a_client_and_of_everybody_count(who: str) -> None:
    authorizer = Authorizer()
    assert authorizer.may_nothing("User:mallory", AclResourceType.TOPIC)
    authorizer.replace([BOB._replace(principal=who)])
    assert not authorizer.may_nothing("User:mallory", AclResourceType.TOPIC)
    assert authorizer.may_nothing("User:mallory", AclResourceType.GROUP)
    authorizer.replace([])
    assert authorizer.may_nothing("User:mallory", AclResourceType.TOPIC)
    for other in (Authorizer(super_users=["User:mallory"]), Authorizer(allow_if_no_acl=True)):
        assert not other.may_nothing("User:mallory", AclResourceType.TOPIC)
