"""Random ACLs, and the answers of both brokers to requests of each API by two principals, field by field."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from anabranch.broker.api.handlers import HANDLERS
from anabranch.protocol.messages import sasl_authenticate, sasl_handshake
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.describe_acls import DescribeAclsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.produce import ProduceRequest
from tests.differential.acls.brokers import ADMIN, PRINCIPALS, Broker, brokers
from tests.differential.acls.requests import (
    ALL,
    GROUP_WITH_MEMBER,
    GROUPS,
    IDS,
    TOPICS,
    Part,
    Scene,
    Sent,
    of_assigned_topics,
)
from tests.differential.answers import Tree, differences
from tests.support.raw_client import API_OF

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

AUTHENTICATION_APIS = {sasl_handshake.KEY, sasl_authenticate.KEY}
SEED = 20260516
MEMBER_ROUNDS = 8
ROUNDS = 20
SHOWN_MAX = 60
DECISIONS_MIN = 2000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    with brokers(tmp_path_factory.mktemp("acls")) as running:
        yield running


def random_acls(rng: random.Random) -> list[AclCreation]:
    """ACLs that concern the resources of the requests, about half of what there is."""
    patterns = {
        2: [*((3, name) for name in (*TOPICS, "avocado", "*")), (4, "a"), (4, "ap"), (4, "b"), (4, "c"), (3, "cherry")],
        3: [*((3, name) for name in (*GROUPS, GROUP_WITH_MEMBER, "*")), (4, "an"), (4, "a"), (4, "b")],
        4: [(3, "kafka-cluster")],
        5: [*((3, name) for name in (*IDS, "*")), (4, "a"), (4, "b")],
        6: [(3, "token")],
        7: [(3, "User:someone")],
    }
    operations = {
        2: (2, 3, 4, 5, 6, 7, 8, 10, 11),
        3: (2, 3, 6, 8, 10, 11),
        4: (2, 5, 6, 7, 8, 9, 10, 11, 12),
        5: (2, 4, 8, 15),
        6: (8,),
        7: (13, 14),
    }
    acls: dict[AclCreation, None] = {}
    for _ in range(rng.randint(8, 26)):
        resource_type = rng.choices([2, 3, 4, 5, 6, 7], [9, 6, 5, 4, 1, 1])[0]
        pattern_type, name = rng.choice(patterns[resource_type])
        acl = AclCreation(
            resource_type=resource_type,
            resource_name=name,
            resource_pattern_type=pattern_type,
            principal=rng.choices(["User:CN=alice", "User:CN=bob", "User:*", "User:alice"], [8, 5, 3, 1])[0],
            host=rng.choices(["*", "127.0.0.1", "10.0.0.1"], [6, 3, 1])[0],
            operation=rng.choice(operations[resource_type]),
            permission_type=rng.choices([3, 2], [5, 1])[0],
        )
        acls[acl] = None
    return list(acls)


def everything() -> list[AclCreation]:
    """ACLs that allow everything to one principal, and to the other all but READ and the cluster."""
    kinds = {2: "*", 3: "*", 4: "kafka-cluster", 5: "*", 6: "*", 7: "*"}
    given: dict[str, Any] = {"resource_pattern_type": 3, "host": "*"}
    allowed = [
        AclCreation(
            resource_type=kind, resource_name=name, principal="User:CN=alice", operation=2, permission_type=3, **given
        )
        for kind, name in kinds.items()
    ]
    return [
        *allowed,
        *(replace(acl, principal="User:CN=bob", operation=3, permission_type=2) for acl in allowed),
        *(replace(acl, principal="User:CN=bob") for acl in allowed if acl.resource_type != 4),
    ]


def prepare(broker: Broker) -> Scene:
    """Create the topics, the internal ones, and a group with a member that has all partitions of two topics."""
    scene = Scene(broker.create_topics(*TOPICS))
    for kind in (0, 1):
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["warm"])
        broker.until(request, 4, lambda answer: not answer.coordinators[0].error_code)
    new_id = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    broker.until(new_id, 4, lambda answer: not answer.error_code)
    # Apache Kafka's coordinator hears of a topic a moment later.
    broker.until(joining("probe"), 1, has_all)
    broker.admin(ConsumerGroupHeartbeatRequest(group_id="probe", member_id="member", member_epoch=-1), 1)
    broker.admin(DeleteGroupsRequest(groups_names=["probe"]), 2)
    scene.member_epoch = broker.until(joining(GROUP_WITH_MEMBER), 1, has_all).member_epoch
    return scene


def joining(group: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="member",
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["apple", "banana"],
        topic_partitions=[],
    )


def has_all(answer: Any) -> bool:
    assigned = answer.assignment.topic_partitions if answer.assignment else ()
    return sum(len(each.partitions) for each in assigned) == 4


def leave(broker: Broker) -> None:
    """End the membership, and delete the group."""
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP_WITH_MEMBER, member_id="member", member_epoch=-1)
    assert not broker.admin(request, 1).error_code
    assert not broker.admin(DeleteGroupsRequest(groups_names=[GROUP_WITH_MEMBER]), 2).results[0].error_code


def beat(broker: Broker, scene: Scene) -> None:
    """Stay in the group."""
    epoch = scene.member_epoch
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP_WITH_MEMBER, member_id="member", member_epoch=epoch)
    assert not broker.admin(request, 1).error_code


def comparable(sent: Sent, tree: Tree) -> Tree:
    """An answer without what is known to differ whatever the ACLs are."""
    if isinstance(tree, dict) and sent.name.startswith("create topics"):
        for topic in tree["topics"].values():
            topic["configs"] = bool(topic["configs"])
            topic["topic_id"] = "<validated>"
            if topic["error_code"] != "NONE" and "AUTHORIZATION" not in topic["error_code"]:
                topic["error_message"] = "<why>"
    if isinstance(tree, dict) and isinstance(sent.message, ProduceRequest):
        for topic in tree["responses"].values():
            for partition in topic["partition_responses"].values():
                if partition["error_code"] != "TOPIC_AUTHORIZATION_FAILED":
                    partition["error_message"] = "<why>"
                if partition["error_code"] != "NONE":
                    partition["log_start_offset"] = "<any>"
    if isinstance(tree, dict) and sent.name == "versions":
        return {name: value for name, value in tree.items() if name in {"error_code", "throttle_time_ms"}}
    return ordered(tree)


def ordered(tree: Tree) -> Tree:
    """Sort lists of structs and texts, whose order has no meaning in these answers.

    Apache Kafka's message to a client that may not do something to the cluster names the request's Java object.
    """
    if isinstance(tree, dict):
        made = {key: ordered(value) for key, value in tree.items()}
        if str(made.get("producer_id")).startswith("<producer"):
            made["producer_id"] = "<producer>"
        message = made.get("error_message")
        if isinstance(message, str) and message.startswith("Request Request("):
            made["error_message"] = "Cluster authorization failed."
        return made
    if isinstance(tree, list):
        items = [ordered(item) for item in tree]
        return sorted(items, key=_identity) if any(isinstance(item, dict | str) for item in items) else items
    return tree


def _identity(item: Tree) -> str:
    """A text to sort structs by: their names first."""
    fields = item if isinstance(item, dict) else {}
    names = [fields.get(name) for name in ("topic", "name", "topic_id", "resource_name", "group_id")]
    return json.dumps([names, item], sort_keys=True)


class Comparison:
    """Both brokers, and what was found so far."""

    def __init__(self, pair: tuple[Broker, Broker]) -> None:
        self.pair = pair
        self.scenes = [prepare(broker) for broker in pair]
        self.decisions = 0
        self.refused = Counter[str]()
        self.apis: set[int] = set()
        self._found: dict[str, list[str]] = {}

    def compare(self, principal: str, parts: Sequence[Part], where: str) -> None:
        """Send the requests of these parts to both brokers."""
        sent = [list(chain.from_iterable(part(scene) for part in parts)) for scene in self.scenes]
        for theirs, ours in zip(*sent, strict=True):
            trees = [
                comparable(each, broker.tree(principal, each.message, each.version))
                for broker, each in zip(self.pair, (theirs, ours), strict=True)
            ]
            self.decisions += 1
            self.apis.add(API_OF[type(theirs.message)].key)
            self.refused["refused" if "AUTHORIZATION_FAILED" in json.dumps(trees[0]) else "served"] += 1
            for path, kafka, mine in differences(*trees):
                what = f"{theirs.name} v{theirs.version}: {path}"
                what += f"\n    Apache Kafka: {kafka!r:.300}\n    ours:         {mine!r:.300}"
                self._found.setdefault(what, []).append(f"{where}, {principal}")

    def check(self) -> None:
        """Fail with all differences."""
        found = [f"{what}\n    in {len(where)}: {where[0]}" for what, where in self._found.items()]
        if found:
            lines = "\n".join(found[:SHOWN_MAX])
            pytest.fail(f"{len(found)} differences in {self.decisions} answers:\n{lines}", pytrace=False)


def creation(**fields: Any) -> AclCreation:
    given: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "apple",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AclCreation(**{**given, **fields})


def selecting(**fields: Any) -> dict[str, Any]:
    given = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return {**given, **fields}


def about_acls(_scene: Scene) -> Iterator[Sent]:
    """Requests of an administrator: ACLs of all kinds, what none may say, and filters."""
    kinds = [
        *(creation(resource_type=kind, resource_name=name) for kind, name in ((2, "*"), (3, "g"), (5, "x"), (6, "t"))),
        creation(resource_type=4, resource_name="kafka-cluster"),
        creation(resource_type=7, resource_name="User:a"),
        creation(resource_pattern_type=4),
        *(creation(operation=operation) for operation in range(2, 16)),
        creation(permission_type=2, host="10.0.0.1", principal="Group:b:c"),
        creation(principal="User:*"),
    ]
    for version in (1, 2, 3):
        yield Sent("create acls of all kinds", CreateAclsRequest(creations=kinds), version)
    bad = [
        creation(resource_type=4, resource_name="other"),
        creation(resource_name=""),
        creation(principal="nobody"),
        creation(resource_pattern_type=99),
        creation(resource_type=99),
        creation(operation=99),
        creation(permission_type=99),
        creation(resource_name="with space/and slash"),
    ]
    for at, each in enumerate(bad):
        yield Sent(f"create {at}", CreateAclsRequest(creations=[each, creation(host="192.168.0.1")]), 3)
    yield Sent("create a code that is unknown", CreateAclsRequest(creations=[creation(operation=0)]), 3)
    filters = [
        selecting(),
        *(selecting(resource_type_filter=kind) for kind in (2, 3, 4, 5, 6, 7, 99)),
        *(selecting(pattern_type_filter=kind) for kind in (2, 3, 4, 99)),
        *(selecting(pattern_type_filter=kind, resource_name_filter="apple") for kind in (1, 2, 3, 4)),
        *(selecting(pattern_type_filter=kind, resource_name_filter="apples") for kind in (1, 2, 3, 4)),
        selecting(resource_name_filter="*"),
        selecting(principal_filter="User:*"),
        selecting(host_filter="10.0.0.1"),
        *(selecting(operation=operation) for operation in (2, 3, 8, 99)),
        *(selecting(permission_type=permission) for permission in (2, 3, 99)),
    ]
    for at, wanted in enumerate(filters):
        for version in (1, 2, 3):
            yield Sent(f"describe {at}", DescribeAclsRequest(**wanted), version)
    for name in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        yield Sent(f"describe unknown {name}", DescribeAclsRequest(**selecting(**{name: 0})), 3)
        yield Sent(f"delete unknown {name}", DeleteAclsRequest(filters=[DeleteAclsFilter(**selecting(**{name: 0}))]), 3)
        undefined = [DeleteAclsFilter(**selecting(**{name: 99})), DeleteAclsFilter(**selecting(host_filter="none"))]
        yield Sent(f"delete undefined {name}", DeleteAclsRequest(filters=undefined), 3)
    narrow = [selecting(operation=operation, resource_type_filter=2) for operation in (3, 4, 5)]
    for version, those in enumerate(narrow, 1):
        deleted = [DeleteAclsFilter(**each) for each in (those, those, selecting(host_filter="x"))]
        yield Sent(f"delete {version}", DeleteAclsRequest(filters=deleted), version)
    yield Sent("describe what is left", DescribeAclsRequest(**selecting(principal_filter="User:a")), 3)


def test_decisions_and_answers_are_those_of_apache_kafka(pair: tuple[Broker, Broker]) -> None:
    rng = random.Random(SEED)
    comparison = Comparison(pair)
    for at in range(MEMBER_ROUNDS + ROUNDS):
        acls = everything() if at == MEMBER_ROUNDS else random_acls(rng)
        for broker, scene in zip(pair, comparison.scenes, strict=True):
            broker.set_acls(acls)
            if at < MEMBER_ROUNDS:
                beat(broker, scene)
                continue
            if at == MEMBER_ROUNDS:
                leave(broker)
            scene.doomed = broker.create_topics(*(f"{first}-doomed-{at}" for first in "abcd"), partitions=1)
        # Once a topic is created, Apache Kafka 4.3.1 shows no assignments of groups that exist.
        parts = (of_assigned_topics,) if at < MEMBER_ROUNDS else ALL
        for principal in PRINCIPALS:
            comparison.compare(principal, parts, f"round {at}")
    for broker in pair:
        broker.set_acls([])
    comparison.compare(ADMIN, (about_acls,), "the end")
    comparison.check()
    assert comparison.decisions >= DECISIONS_MIN
    assert min(comparison.refused.values()) > comparison.decisions // 5, f"too one-sided: {comparison.refused}"
    served = {key for key, handler in HANDLERS.items() if not handler.of_telemetry}
    assert comparison.apis == served - AUTHENTICATION_APIS, "each API that is checked"
