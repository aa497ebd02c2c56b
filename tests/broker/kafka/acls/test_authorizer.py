"""The authorizer, compared with a model that looks at all ACLs for each decision."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.kafka.acls import authorizer as authorizer_module
from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.model import Acl, AclFilter, AclOperation, AclResourceType, PatternType, Permission

TYPES = [each for each in AclResourceType if each > AclResourceType.ANY]
OPERATIONS = [each for each in AclOperation if each > AclOperation.ALL]
NAMES = ["a", "ab", "abc", "b", "ba", "*", "hardcode", "x" * 300]
PRINCIPALS = ["User:a", "User:b", "User:*"]
HOSTS = ["127.0.0.1", "10.0.0.1", "*"]

ACLS = st.builds(
    Acl,
    st.sampled_from(TYPES[:2]),
    st.sampled_from([*NAMES, "h"]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from([AclOperation.ALL, *OPERATIONS[:8]]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
ACTIONS = st.tuples(
    st.sampled_from(["User:a", "User:b", "User:c"]),
    st.sampled_from(["127.0.0.1", "10.0.0.1"]),
    st.sampled_from(OPERATIONS[:8]),
    st.sampled_from(TYPES[:2]),
    st.sampled_from(NAMES),
)


def concerns(acl: Acl, resource_type: AclResourceType, name: str) -> bool:
    if acl.resource_type is not resource_type:
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in {name, "*"}


def applies(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in {principal, "User:*"} and acl.host in {host, "*"}


def model(
    acls: Sequence[Acl],
    principal: str,
    host: str,
    operation: AclOperation,
    resource_type: AclResourceType,
    name: str,
    *,
    default: bool,
) -> bool:
    """The decision by the words of Kafka's documentation."""
    found = [acl for acl in acls if concerns(acl, resource_type, name)]
    if not found:
        return default
    mine = [acl for acl in found if applies(acl, principal, host)]
    if any(acl.permission is Permission.DENY and acl.operation in {operation, AclOperation.ALL} for acl in mine):
        return False
    implying = {operation, AclOperation.ALL}
    if operation is AclOperation.DESCRIBE:
        implying |= {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    if operation is AclOperation.DESCRIBE_CONFIGS:
        implying.add(AclOperation.ALTER_CONFIGS)
    return any(acl.permission is Permission.ALLOW and acl.operation in implying for acl in mine)


def model_any(
    acls: Sequence[Acl], principal: str, host: str, operation: AclOperation, resource_type: AclResourceType
) -> bool:
    """True if some resource can be named to which the client may do this very operation."""
    mine = [
        acl
        for acl in acls
        if acl.resource_type is resource_type
        and applies(acl, principal, host)
        and acl.operation in {operation, AclOperation.ALL}
    ]
    denied = [acl for acl in mine if acl.permission is Permission.DENY]
    if any(acl.pattern_type is PatternType.LITERAL and acl.resource_name == "*" for acl in denied):
        return False
    for acl in mine:
        if acl.permission is Permission.DENY:
            continue
        if acl.pattern_type is PatternType.LITERAL and acl.resource_name == "*":
            return True  # there is always a name that no other pattern covers
        # A name below a prefix that no literal ACL has.
        name = acl.resource_name if acl.pattern_type is PatternType.LITERAL else f"{acl.resource_name}~none"
        if not any(concerns(other, resource_type, name) for other in denied):
            return True
    return False


@settings(max_examples=300)
@given(st.lists(ACLS, max_size=12), st.lists(ACTIONS, max_size=12), st.booleans())
def test_decisions_are_those_of_the_model(
    acls: list[Acl],
    actions: list[tuple[str, str, AclOperation, AclResourceType, str]],
    default: bool,
) -> None:
    authorizer = Authorizer(allow_if_no_acl=default)
    authorizer.replace(acls)
    for _ in range(2):  # decided, then remembered
        for action in actions:
            assert authorizer.authorize(*action) == model(acls, *action, default=default)
            principal, host, operation, resource_type, _ = action
            by_probe = model(acls, principal, host, operation, resource_type, "hardcode", default=default)
            expected = by_probe or model_any(acls, principal, host, operation, resource_type)
            assert authorizer.authorize_any(principal, host, operation, resource_type) == expected


@settings(max_examples=150)
@given(st.lists(st.lists(ACLS, max_size=8), min_size=2, max_size=5), st.lists(ACTIONS, max_size=8))
def test_changes_leave_nothing_behind(
    generations: list[list[Acl]], actions: list[tuple[str, str, AclOperation, AclResourceType, str]]
) -> None:
    authorizer = Authorizer()
    for acls in generations:
        authorizer.replace(acls)
        assert set(authorizer.acls) == set(acls)
        for action in actions:
            assert authorizer.authorize(*action) == model(acls, *action, default=False)


def test_all_types_and_operations_are_told_apart() -> None:
    for resource_type, operation in product(TYPES, OPERATIONS):
        authorizer = Authorizer()
        authorizer.replace([Acl(resource_type, "r", PatternType.LITERAL, "User:a", "*", operation, Permission.ALLOW)])
        for other_type, other in product(TYPES, OPERATIONS):
            expected = other_type is resource_type and (
                other is operation
                or (other is AclOperation.DESCRIBE and operation.name in {"READ", "WRITE", "DELETE", "ALTER"})
                or (other is AclOperation.DESCRIBE_CONFIGS and operation is AclOperation.ALTER_CONFIGS)
            )
            assert authorizer.authorize("User:a", "h", other, other_type, "r") == expected


def ready(*acls: Acl) -> Authorizer:
    authorizer = Authorizer()
    authorizer.replace(acls)
    return authorizer


def test_a_name_that_is_allowed_and_denied_is_not_one_to_do_something_with() -> None:
    allow, action = acl("t"), ("User:a", "h", AclOperation.READ, AclResourceType.TOPIC)
    deny = allow._replace(permission=Permission.DENY)
    assert ready(allow).authorize_any(*action)
    assert not ready(allow, deny).authorize_any(*action)
    assert ready(allow, deny, acl("u")).authorize_any(*action)
    assert not ready(acl("tu"), deny._replace(pattern_type=PatternType.PREFIXED)).authorize_any(*action)


def test_super_users_may_do_everything_even_before_the_acls_are_known() -> None:
    authorizer = Authorizer(super_users=["User:root"], allow_if_no_acl=True)
    action = ("127.0.0.1", AclOperation.ALTER, AclResourceType.CLUSTER, "kafka-cluster")
    assert [each.is_ready for each in (authorizer, ready())] == [False, True]
    assert authorizer.authorize("User:root", *action)
    assert authorizer.authorize_any("User:root", *action[:3])
    assert not authorizer.authorize("User:a", *action)
    assert not authorizer.authorize_any("User:a", *action[:3])
    authorizer.replace([])
    assert authorizer.authorize("User:a", *action), "a decision was remembered from before the ACLs were known"
    deny = Acl(action[2], action[3], PatternType.LITERAL, "User:*", "*", AclOperation.ALL, Permission.DENY)
    authorizer.replace([deny])
    assert authorizer.authorize("User:root", *action)
    assert not authorizer.authorize("User:a", *action)


def test_few_decisions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_module, "REMEMBERED_MAX", 10)
    authorizer = Authorizer()
    authorizer.replace([])
    for number in range(100):
        authorizer.authorize("User:a", "h", AclOperation.READ, AclResourceType.TOPIC, f"t{number}")
        authorizer.authorize("User:a", "h", AclOperation.READ, AclResourceType.GROUP, f"{'g' * 300}{number}")
        assert len(authorizer._remembered) <= 10  # noqa: SLF001
        assert not any(len(key[-1]) > 300 for key in authorizer._remembered)  # noqa: SLF001


def acl(name: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    return Acl(AclResourceType.TOPIC, name, pattern, "User:a", "*", AclOperation.READ, Permission.ALLOW)


def selects(name: str | None, pattern: PatternType) -> AclFilter:
    return AclFilter(AclResourceType.ANY, name, pattern, None, None, AclOperation.ANY, Permission.ANY)


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        (None, PatternType.ANY, {"ab", "*", "a..."}),
        (None, PatternType.LITERAL, {"ab", "*"}),
        (None, PatternType.PREFIXED, {"a..."}),
        (None, PatternType.MATCH, {"ab", "*", "a..."}),
        ("ab", PatternType.ANY, {"ab"}),
        ("ab", PatternType.LITERAL, {"ab"}),
        ("ab", PatternType.PREFIXED, set()),
        ("a", PatternType.PREFIXED, {"a..."}),
        ("ab", PatternType.MATCH, {"ab", "*", "a..."}),
        ("b", PatternType.MATCH, {"*"}),
        ("*", PatternType.LITERAL, {"*"}),
    ],
)
def test_filters_select_by_name_and_pattern(name: str | None, pattern: PatternType, expected: set[str]) -> None:
    acls = {"ab": acl("ab"), "*": acl("*"), "a...": acl("a", PatternType.PREFIXED)}
    assert {key for key, each in acls.items() if selects(name, pattern).matches(each)} == expected


def test_filters_select_by_each_other_field() -> None:
    one = acl("t")
    everything = selects(None, PatternType.ANY)
    assert everything.matches(one)
    cases: list[tuple[str, Any, Any]] = [
        ("resource_type", AclResourceType.TOPIC, AclResourceType.GROUP),
        ("principal", "User:a", "User:*"),
        ("host", "*", "127.0.0.1"),
        ("operation", AclOperation.READ, AclOperation.ALL),
        ("permission", Permission.ALLOW, Permission.DENY),
    ]
    for field, same, other in cases:
        assert everything._replace(**{field: same}).matches(one)
        assert not everything._replace(**{field: other}).matches(one), field


def test_codes_that_kafka_does_not_define_are_unknown() -> None:
    assert AclResourceType(99) is AclResourceType.UNKNOWN
    assert AclFilter(
        AclResourceType(99), None, PatternType.ANY, None, None, AclOperation.ANY, Permission.ANY
    ).is_unknown
    assert AclFilter(
        AclResourceType.ANY, None, PatternType.ANY, None, None, AclOperation(-3), Permission.ANY
    ).is_unknown
    assert not selects(None, PatternType.ANY).is_unknown
