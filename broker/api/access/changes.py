"""Audit events of requested changes: one for each resource, whether it was changed or not.

Handlers of other APIs are left as they are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from anabranch.broker.api.access.guard import amending
from anabranch.broker.api.handlers import Handler, HandlerFunction
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    elect_leaders,
    expire_delegation_token,
    incremental_alter_configs,
    offset_delete,
    renew_delegation_token,
    unregister_broker,
    update_features,
    write_txn_markers,
)


class Change(NamedTuple):
    """A resource that was to be changed, and the outcome."""

    resource_type: str
    resource: str
    error_code: int


Changes = Callable[[Any, Any], Iterable[Change]]
"""Returns what a request was to change, from request and response."""


def _topics(_request: Any, response: Any) -> Iterable[Change]:
    return (Change("TOPIC", each.name, each.error_code) for each in response.topics)


def _deleted_topics(_request: Any, response: Any) -> Iterable[Change]:
    return (Change("TOPIC", each.name or uuid_text(each.topic_id), each.error_code) for each in response.responses)


def _grown_topics(_request: Any, response: Any) -> Iterable[Change]:
    return (Change("TOPIC", each.name, each.error_code) for each in response.results)


def _partitions(_request: Any, response: Any) -> Iterable[Change]:
    for topic in response.topics:
        for each in topic.partitions:
            yield Change("TOPIC", f"{topic.name}-{each.partition_index}", each.error_code)


def _configs(_request: Any, response: Any) -> Iterable[Change]:
    for each in response.responses:
        known = each.resource_type in set(ResourceType)
        kind = ResourceType(each.resource_type).name if known else str(each.resource_type)
        yield Change(kind, each.resource_name, each.error_code)


def _quotas(_request: Any, response: Any) -> Iterable[Change]:
    for each in response.entries:
        names = ", ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in each.entity)
        yield Change("CLIENT_QUOTA", names, each.error_code)


def _groups(_request: Any, response: Any) -> Iterable[Change]:
    return (Change("GROUP", each.group_id, each.error_code) for each in response.results)


def _offsets(request: Any, response: Any) -> Iterable[Change]:
    return (Change("GROUP", request.group_id, response.error_code),)


def _created_acls(request: Any, response: Any) -> Iterable[Change]:
    for asked, result in zip(request.creations, response.results, strict=True):
        text = _acl(
            asked.resource_type,
            asked.resource_pattern_type,
            asked.resource_name,
            asked.principal,
            asked.host,
            asked.operation,
            asked.permission_type,
        )
        yield Change("ACL", text, result.error_code)


def _deleted_acls(_request: Any, response: Any) -> Iterable[Change]:
    for result in response.filter_results:
        if result.error_code:
            yield Change("ACL", "", result.error_code)
        for each in result.matching_acls:
            text = _acl(
                each.resource_type,
                each.pattern_type,
                each.resource_name,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )
            yield Change("ACL", text, each.error_code)


def _acl(
    resource_type: int, pattern_type: int, name: str, principal: str, host: str, operation: int, permission: int
) -> str:
    pattern = f"{AclResourceType(resource_type).name} {PatternType(pattern_type).name} {name}"
    return f"{Permission(permission).name} {principal} at {host} {AclOperation(operation).name} on {pattern}"


def _elections(_request: Any, response: Any) -> Iterable[Change]:
    for topic in response.replica_election_results:
        for each in topic.partition_result:
            yield Change("TOPIC", f"{topic.topic}-{each.partition_id}", each.error_code)


def _reassignments(_request: Any, response: Any) -> Iterable[Change]:
    for topic in response.responses:
        for each in topic.partitions:
            yield Change("TOPIC", f"{topic.name}-{each.partition_index}", each.error_code)


def _features(request: Any, response: Any) -> Iterable[Change]:
    names = ",".join(each.feature for each in request.feature_updates)
    return (Change("FEATURE", names, response.error_code),)


def _broker(request: Any, response: Any) -> Iterable[Change]:
    return (Change("BROKER", str(request.broker_id), response.error_code),)


def _users(_request: Any, response: Any) -> Iterable[Change]:
    return (Change("USER", each.user, each.error_code) for each in response.results)


def _created_token(_request: Any, response: Any) -> Iterable[Change]:
    named = f"{response.token_id} of {response.principal_type}:{response.principal_name}".strip()
    return (Change("DELEGATION_TOKEN", named, response.error_code),)


def _token(_request: Any, response: Any) -> Iterable[Change]:
    return (Change("DELEGATION_TOKEN", "", response.error_code),)


def _markers(_request: Any, response: Any) -> Iterable[Change]:
    for marker in response.markers:
        for topic in marker.topics:
            for each in topic.partitions:
                yield Change("TOPIC", f"{topic.name}-{each.partition_index}", each.error_code)


CHANGES: Final[Mapping[int, Changes]] = MappingProxyType(
    {
        create_topics.KEY: _topics,
        delete_topics.KEY: _deleted_topics,
        create_partitions.KEY: _grown_topics,
        delete_records.KEY: _partitions,
        alter_configs.KEY: _configs,
        incremental_alter_configs.KEY: _configs,
        alter_client_quotas.KEY: _quotas,
        delete_groups.KEY: _groups,
        offset_delete.KEY: _offsets,
        create_acls.KEY: _created_acls,
        delete_acls.KEY: _deleted_acls,
        elect_leaders.KEY: _elections,
        alter_partition_reassignments.KEY: _reassignments,
        update_features.KEY: _features,
        unregister_broker.KEY: _broker,
        alter_user_scram_credentials.KEY: _users,
        create_delegation_token.KEY: _created_token,
        renew_delegation_token.KEY: _token,
        expire_delegation_token.KEY: _token,
        write_txn_markers.KEY: _markers,
    }
)
"""Changes by API key."""


def _token_id(node: Node, request: Any) -> str:
    """Return the id of the token that a request names by its HMAC, which is a secret; empty if there is none."""
    return "" if node.delegation_tokens is None else node.delegation_tokens.id_of(request.hmac)


SUBJECTS: Final[Mapping[int, Callable[[Node, Any], str]]] = MappingProxyType(
    {renew_delegation_token.KEY: _token_id, expire_delegation_token.KEY: _token_id}
)
"""By API key, a look-up of the changed resource, made before requests are handled that do not name it."""


def audited(handlers: Mapping[int, Handler]) -> Mapping[int, Handler]:
    """Return the handlers, of which those that change resources record audit events."""
    return {
        key: replace(handler, function=_recording(handler.api.name, handler.function, CHANGES[key], SUBJECTS.get(key)))
        if key in CHANGES
        else handler
        for key, handler in handlers.items()
    }


def _recording(
    api: str, function: HandlerFunction, changes: Changes, subject_of: Callable[[Node, Any], str] | None
) -> HandlerFunction:
    def handle(node: Node, request: Any, exchange: Exchange) -> Any:
        if not getattr(request, "validate_only", False):
            subject = "" if subject_of is None else subject_of(node, request)
            exchange.amend = amending(
                node, exchange, lambda response: _recorded(node, request, exchange, response, subject)
            )
        return function(node, request, exchange)

    def _recorded(node: Node, request: Any, exchange: Exchange, response: Any, subject: str) -> Any:
        connection = exchange.connection
        for change in changes(request, response):
            node.audit.record(
                "changed" if not change.error_code else "change refused",
                principal=connection.principal,
                host=connection.host,
                api=api,
                resource_type=change.resource_type,
                resource=change.resource or subject,
                outcome=ErrorCode(change.error_code).name if change.error_code else "OK",
            )
        return response

    return handle
