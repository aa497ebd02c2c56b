"""`anabranch acl ...`: access control lists, with the options of `kafka-acls`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from itertools import product
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.kafka.acls.model import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclResourceType,
    PatternType,
    Permission,
)
from anabranch.broker.kafka.acls.operations import CONSUMER, PRODUCER, NoSuchOperation, check_operation, parse_principal
from anabranch.broker.kafka.acls.requests import create_request, delete_request, deleted_acls
from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.questions import confirm
from anabranch.client.cluster import Cluster
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.output import count_text, emit, make_table, output_option, plain, show_plan
from anabranch.protocol.messages.create_acls import CreateAclsResponse
from anabranch.protocol.messages.delete_acls import DeleteAclsResponse
from anabranch.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

Resource = tuple[AclResourceType, str]


def parse_operation(text: str) -> AclOperation:
    """Parse an operation: in lower case, or as `kafka-acls` writes it. Raises BadParameter."""
    wanted = text.lower().replace("_", "").replace("-", "")
    known = [each for each in AclOperation if each > AclOperation.ANY]
    for each in known:
        if each.text.replace("_", "") == wanted:
            return each
    raise click.BadParameter(f"expected one of {', '.join(each.text for each in known)}; found {text!r}")


@dataclass(frozen=True, slots=True)
class Choice:
    """Resources and subjects that options name."""

    resources: Sequence[Resource]
    subjects: Sequence[tuple[Permission, str | None, str | None]]
    """Permission, principal and host; None: any."""
    operations: Sequence[AclOperation]
    pattern: PatternType

    def filters(self) -> Iterator[AclFilter]:
        """Yield the filters that together select what is named."""
        resources: Sequence[tuple[AclResourceType, str | None]] = self.resources or [(AclResourceType.ANY, None)]
        subjects = self.subjects or [(Permission.ANY, None, None)]
        operations = self.operations or [AclOperation.ANY]
        for (kind, name), (permission, principal, host), operation in product(resources, subjects, operations):
            yield AclFilter(kind, name, self.pattern, principal, host, operation, permission)


@click.group()
def acl() -> None:
    """List, add and remove access control lists (ACLs).

    Options are those of kafka-acls. A principal is TYPE:NAME; without a type it is a user.
    """


_RESOURCE_OPTIONS: Final = {
    AclResourceType.TOPIC: "--topic",
    AclResourceType.GROUP: "--group",
    AclResourceType.TRANSACTIONAL_ID: "--transactional-id",
    AclResourceType.DELEGATION_TOKEN: "--delegation-token",
    AclResourceType.USER: "--user-principal",
}


def _choice_options(*, selects: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that name resources and subjects; the command receives a `Choice` as `choice`.

    `selects`: they select ACLs that exist, so that patterns and principals may be left open.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(
            operations: Sequence[AclOperation],
            pattern: str,
            allowed: Sequence[str],
            denied: Sequence[str],
            allow_hosts: Sequence[str],
            deny_hosts: Sequence[str],
            principals: Sequence[str] = (),
            *,
            cluster: bool,
            **arguments: Any,
        ) -> None:
            resources = [(kind, name) for kind in _RESOURCE_OPTIONS for name in arguments.pop(kind.text)]
            if cluster:
                resources.append((AclResourceType.CLUSTER, CLUSTER_NAME))
            subjects = [
                *_subjects(Permission.ALLOW, allowed, allow_hosts),
                *_subjects(Permission.DENY, denied, deny_hosts),
                *_subjects(Permission.ANY, principals, ()),
            ]
            command(choice=Choice(resources, subjects, operations, PatternType[pattern.upper()]), **arguments)

        wrapped: Callable[..., None] = update_wrapper(run, command)
        for option in reversed(_options(selects=selects)):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _principal(option: str, name: str, about: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(option, name, type=parse_principal, metavar="PRINCIPAL", multiple=True, help=about)


def _options(*, selects: bool) -> Sequence[Callable[[Callable[..., None]], Callable[..., None]]]:
    kinds = [PatternType.LITERAL, PatternType.PREFIXED]
    names = [each.text for each in ([PatternType.ANY, PatternType.MATCH, *kinds] if selects else kinds)]
    return [
        *([_principal("--principal", "principals", "Who may or may not; repeatable.")] if selects else []),
        _principal("--allow-principal", "allowed", "Who may; repeatable."),
        _principal("--deny-principal", "denied", "Who may not; repeatable."),
        click.option("--allow-host", "allow_hosts", metavar="ADDRESS", multiple=True, help="From where; repeatable."),
        click.option("--deny-host", "deny_hosts", metavar="ADDRESS", multiple=True, help="From where not; repeatable."),
        click.option(
            "--operation",
            "operations",
            type=parse_operation,
            metavar="OPERATION",
            multiple=True,
            help="read, write, create, delete, alter, describe, describe_configs, alter_configs, cluster_action, "
            "idempotent_write, create_tokens, describe_tokens, two_phase_commit or all; repeatable.",
        ),
        *(
            click.option(
                option, kind.text, metavar="NAME", multiple=True, help=f"A {kind.words}; repeatable. `*`: all."
            )
            for kind, option in _RESOURCE_OPTIONS.items()
        ),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(names, case_sensitive=False),
            default=names[0],
            show_default=True,
            help="Meaning of the names. " + ("match: all that apply to them." if selects else "prefixed: beginnings."),
        ),
    ]


def _subjects(
    permission: Permission, principals: Sequence[str], hosts: Sequence[str]
) -> Iterable[tuple[Permission, str | None, str | None]]:
    whom: Sequence[str | None] = principals or [None]
    where: Sequence[str | None] = hosts or [None]
    if principals or hosts:
        yield from product([permission], whom, where)


@acl.command(name="list", short_help="List ACLs.")
@_choice_options(selects=True)
@output_option
@client_options
def list_(choice: Choice, client: CommandClient, output: str) -> None:
    """List the ACLs that the options select, or all."""
    with client.cluster() as cluster:
        found = _find(cluster, choice)
    emit(output, [_data(each) for each in found], lambda console: _show(found, console))


@acl.command(short_help="Add ACLs.")
@_choice_options(selects=False)
@click.option("--producer", is_flag=True, help="What a producer to --topic needs, with --transactional-id if named.")
@click.option("--consumer", is_flag=True, help="What a consumer of --topic in --group needs.")
@click.option("--idempotent", is_flag=True, help="With --producer: also allow it to be idempotent on old brokers.")
@output_option
@client_options
def add(
    choice: Choice, *, producer: bool, consumer: bool, idempotent: bool, client: CommandClient, output: str
) -> None:
    """Add an ACL for each principal, host, operation and resource that the options name.

    Without --operation it is about all operations, without a host about all hosts. Those that exist stay.

    \b
    anabranch acl add --allow-principal alice --producer --topic orders
    anabranch acl add --allow-principal alice --consumer --topic orders --group readers
    anabranch acl add --allow-principal ops --operation describe --topic shop- --resource-pattern-type prefixed
    """
    wanted = _wanted(choice, producer=producer, consumer=consumer, idempotent=idempotent)
    with client.cluster() as cluster:
        answer: CreateAclsResponse = cluster.first.call(create_request(wanted))
    outcomes = list(zip(wanted, answer.results, strict=True))
    added = [each for each, result in outcomes if not result.error_code]
    failures = {error_text(result.error_code, result.error_message) for _, result in outcomes if result.error_code}
    if added:
        emit(output, [_data(each) for each in added], lambda console: _show(added, console))
    if failures:
        raise ClientError("; ".join(sorted(failures)))


def _wanted(choice: Choice, *, producer: bool, consumer: bool, idempotent: bool) -> Sequence[Acl]:
    """Return the ACLs to add, each once. Raises UsageError."""
    if not any(principal for _, principal, _ in choice.subjects):
        raise click.UsageError("name who: --allow-principal or --deny-principal")
    if not choice.resources:
        raise click.UsageError("name resources: --topic, --group, --transactional-id, --cluster, ...")
    kinds = {kind for kind, _ in choice.resources}
    if (producer or consumer) and (choice.operations or AclResourceType.TOPIC not in kinds):
        raise click.UsageError("--producer and --consumer need --topic, and stand for operations")
    if consumer and AclResourceType.GROUP not in kinds:
        raise click.UsageError("--consumer needs --group")
    if idempotent and not producer:
        raise click.UsageError("--idempotent needs --producer")
    if producer or consumer:
        roles = [role for role, is_given in ((PRODUCER, producer), (CONSUMER, consumer)) if is_given]
        targets = [
            (kind, name, operation)
            for role in roles
            for kind, name in choice.resources
            for operation in role.get(kind, ())
        ]
        if idempotent:
            targets.append((AclResourceType.CLUSTER, CLUSTER_NAME, AclOperation.IDEMPOTENT_WRITE))
        if unused := kinds - {kind for role in roles for kind in role}:
            raise click.UsageError(f"no role needs a {min(unused).words}: give --operation for it, in another call")
    else:
        operations = choice.operations or [AclOperation.ALL]
        targets = [(kind, name, operation) for (kind, name) in choice.resources for operation in operations]
    for kind, _, operation in targets:
        try:
            check_operation(kind, operation)
        except NoSuchOperation as error:
            raise click.UsageError(str(error)) from None
    made = (
        Acl(
            kind,
            name,
            PatternType.LITERAL if kind is AclResourceType.CLUSTER else choice.pattern,
            principal,
            host or WILDCARD,
            operation,
            permission,
        )
        for permission, principal, host in choice.subjects
        if principal is not None
        for kind, name, operation in targets
    )
    return list(dict.fromkeys(made))


@acl.command(short_help="Remove ACLs.")
@_choice_options(selects=True)
@yes_option
@output_option
@client_options
def remove(choice: Choice, *, yes: bool, client: CommandClient, output: str) -> None:
    """Remove the ACLs that the options select. They are shown first, as `acl list` with the same options shows them."""
    if not (choice.resources or choice.subjects or choice.operations):
        raise click.UsageError("name which: --principal, --topic, --operation, ...")
    with client.cluster() as cluster:
        found = _find(cluster, choice)
        if not found:
            raise ClientError("no ACL is selected")
        show_plan(output, lambda console: _show(found, console), asks=not yes)
        if not yes:
            confirm(f"Remove {count_text(len(found), 'ACL')}?")
        removed = _delete(cluster, found)
    emit(output, [_data(each) for each in removed], f"removed {count_text(len(removed), 'ACL')}")


def _find(cluster: Cluster, choice: Choice) -> Sequence[Acl]:
    """Return the ACLs that are selected, each once. Raises ClientError."""
    found: set[Acl] = set()
    for each in choice.filters():
        request = DescribeAclsRequest(
            resource_type_filter=each.resource_type,
            resource_name_filter=each.resource_name,
            pattern_type_filter=each.pattern_type,
            principal_filter=each.principal,
            host_filter=each.host,
            operation=each.operation,
            permission_type=each.permission,
        )
        answer: DescribeAclsResponse = cluster.first.call(request)
        if answer.error_code:
            raise ClientError(error_text(answer.error_code, answer.error_message))
        found.update(
            Acl(
                AclResourceType(resource.resource_type),
                resource.resource_name,
                PatternType(resource.pattern_type),
                entry.principal,
                entry.host,
                AclOperation(entry.operation),
                Permission(entry.permission_type),
            )
            for resource in answer.resources
            for entry in resource.acls
        )
    return sorted(found)


def _delete(cluster: Cluster, acls: Sequence[Acl]) -> Sequence[Acl]:
    """Remove exactly these ACLs, and return those that were still there. Raises ClientError."""
    answer: DeleteAclsResponse = cluster.first.call(delete_request(acls))
    for result in answer.filter_results:
        if result.error_code:
            raise ClientError(error_text(result.error_code, result.error_message))
    return deleted_acls(acls, answer)


def _data(found: Acl) -> Mapping[str, str]:
    return {
        "principal": found.principal,
        "host": found.host,
        "permission": found.permission.text,
        "operation": found.operation.text,
        "resource_type": found.resource_type.text,
        "resource": found.resource_name,
        "pattern": found.pattern_type.text,
    }


def _show(acls: Sequence[Acl], console: Console) -> None:
    if not acls:
        console.print("no ACL is selected")
        return
    table = make_table("principal", "host", "permission", "operation", "resource type", "resource", "pattern")
    for each in acls:
        table.add_row(*map(plain, _data(each).values()))
    console.print(table)
