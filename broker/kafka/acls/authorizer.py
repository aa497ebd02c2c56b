"""Decides by ACLs, as Apache Kafka's StandardAuthorizer does. Pure.

The ACLs that apply to an action are those whose pattern matches the resource: the literal name, the literal `*`, and
prefixes. If one of them denies the operation to the principal at its host, the action is denied; else if one allows it,
it is allowed. If the resource has no ACL for any principal, the default decides. Super users may do everything.

An ACL that allows READ, WRITE, DELETE or ALTER allows DESCRIBE, too, and one that allows ALTER_CONFIGS allows
DESCRIBE_CONFIGS. A denial implies nothing else.

A decision looks only at the ACLs of one principal for one name and its prefixes, and is cached until ACLs change.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from anabranch.addresses import normal_host
from anabranch.broker.kafka.acls.model import (
    EVERYBODY,
    WILDCARD,
    Acl,
    AclOperation,
    AclResourceType,
    PatternType,
    Permission,
)

IMPLYING: Final = {
    **{each: frozenset({each}) for each in AclOperation},
    AclOperation.DESCRIBE: frozenset(
        {
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""The operations that allow another one when they are allowed."""
REMEMBERED_MAX: Final = 20_000
"""Decisions that are remembered."""
REMEMBERED_NAME_MAX: Final = 250
"""Longest name of a resource whose decisions are remembered: clients choose names of groups up to 32 KiB."""
_PROBE: Final = "hardcode"
"""Name that Kafka asks for when it looks for any resource of a type."""

_Rules = dict[str, list[Acl]]
"""ACLs of one pattern, by principal."""


def _comparable(acl: Acl) -> Acl:
    """Return an ACL with its host normalised like clients' addresses."""
    return acl._replace(host=normal_host(acl.host))


class _Patterns:
    """The ACLs of one type of resource."""

    def __init__(self) -> None:
        self.literal: dict[str, _Rules] = {}
        self.prefixed: dict[str, _Rules] = {}
        self._lengths: dict[int, int] = {}
        """Number of prefixes by length."""

    @property
    def is_empty(self) -> bool:
        return not (self.literal or self.prefixed)

    def add(self, acl: Acl) -> None:
        is_prefix = acl.pattern_type is PatternType.PREFIXED
        patterns = self.prefixed if is_prefix else self.literal
        if is_prefix and acl.resource_name not in patterns:
            length = len(acl.resource_name)
            self._lengths[length] = self._lengths.get(length, 0) + 1
        patterns.setdefault(acl.resource_name, {}).setdefault(acl.principal, []).append(acl)

    def remove(self, acl: Acl) -> None:
        is_prefix = acl.pattern_type is PatternType.PREFIXED
        patterns = self.prefixed if is_prefix else self.literal
        rules = patterns[acl.resource_name]
        rules[acl.principal].remove(acl)
        if not rules[acl.principal]:
            del rules[acl.principal]
        if rules:
            return
        del patterns[acl.resource_name]
        if is_prefix:
            length = len(acl.resource_name)
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def matching(self, name: str) -> Iterable[_Rules]:
        """Yield the rules of each pattern that matches a name."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if (found := self.literal.get(WILDCARD)) is not None:
            yield found
        prefixed = self.prefixed
        for length in self._lengths:
            if length <= len(name) and (found := prefixed.get(name[:length])) is not None:
                yield found


class Authorizer:
    """The ACLs of a cluster, and decisions by them.

    Until `replace` is called for the first time, everything is denied but to super users.
    """

    def __init__(self, *, super_users: Collection[str] = (), allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._acls: frozenset[Acl] | None = None
        self._patterns = {each: _Patterns() for each in AclResourceType}
        self._own: dict[tuple[AclResourceType, str], _Patterns] = defaultdict(_Patterns)
        """The patterns of each principal."""
        self.version = 0
        """Grows with every change of the ACLs."""
        self._remembered: dict[tuple[str, str, int, int, str], bool] = {}

    @property
    def acls(self) -> Collection[Acl]:
        """All ACLs."""
        return self._acls or frozenset()

    @property
    def is_ready(self) -> bool:
        """True once the ACLs are known."""
        return self._acls is not None

    def replace(self, acls: Collection[Acl]) -> None:
        """Decide by these ACLs from now on."""
        wanted, had = frozenset(acls), self.acls
        for acl in had:
            if acl not in wanted:
                for patterns in self._patterns_of(acl):
                    patterns.remove(_comparable(acl))
                if self._own[acl.resource_type, acl.principal].is_empty:
                    del self._own[acl.resource_type, acl.principal]
        for acl in wanted:
            if acl not in had:
                for patterns in self._patterns_of(acl):
                    patterns.add(_comparable(acl))
        self._acls = wanted
        self.version += 1
        self._remembered.clear()

    def _patterns_of(self, acl: Acl) -> tuple[_Patterns, _Patterns]:
        return self._patterns[acl.resource_type], self._own[acl.resource_type, acl.principal]

    def may_nothing(self, principal: str, resource_type: AclResourceType) -> bool:
        """Return whether no rule can allow a principal anything on a type of resource, whatever its name."""
        nobody = (resource_type, principal) not in self._own and (resource_type, EVERYBODY) not in self._own
        return nobody and not self._allow_if_no_acl and principal not in self._super_users

    def authorize(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool:
        """Return whether a principal at a host, in the usual notation, may do an operation to a resource."""
        key = (principal, host, int(operation), int(resource_type), name)
        decided = self._remembered.get(key)
        if decided is None:
            decided = self._decide(principal, host, operation, resource_type, name)
            if len(name) <= REMEMBERED_NAME_MAX and self._acls is not None:
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[key] = decided
        return decided

    def _decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        if self._acls is None:
            return False
        allowing = IMPLYING[operation]
        allowed = False
        for who in (principal, EVERYBODY):
            own = self._own.get((resource_type, who))
            for rules in () if own is None else own.matching(name):
                for acl in rules[who]:
                    if acl.host not in {WILDCARD, host}:
                        continue
                    if acl.permission is Permission.DENY:
                        if acl.operation in {AclOperation.ALL, operation}:
                            return False
                    elif acl.operation is AclOperation.ALL or acl.operation in allowing:
                        allowed = True
        if allowed or not self._allow_if_no_acl:
            return allowed
        return not any(self._patterns[resource_type].matching(name))

    def authorize_any(self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Return whether a principal may do an operation to at least one resource of a type (KIP-679).

        As in Kafka, operations that imply this one do not count.
        """
        if self.authorize(principal, host, operation, resource_type, _PROBE):
            return True
        if self._acls is None:
            return False
        patterns = self._patterns[resource_type]
        literal = self._names(patterns.literal, principal, host, operation)
        prefixed = self._names(patterns.prefixed, principal, host, operation)
        if WILDCARD in literal[Permission.DENY]:
            return False
        if WILDCARD in literal[Permission.ALLOW]:
            return True
        denied = prefixed[Permission.DENY]

        def is_denied(name: str) -> bool:
            return any(name[:length] in denied for length in range(1, len(name) + 1))

        allowed = (literal[Permission.ALLOW] - literal[Permission.DENY]) | prefixed[Permission.ALLOW]
        return any(not is_denied(name) for name in allowed)

    @staticmethod
    def _names(
        patterns: dict[str, _Rules], principal: str, host: str, operation: AclOperation
    ) -> dict[Permission, set[str]]:
        """Return the names of the patterns that allow and deny an operation."""
        names: dict[Permission, set[str]] = {Permission.ALLOW: set(), Permission.DENY: set()}
        for name, rules in patterns.items():
            for who in (principal, EVERYBODY):
                for acl in rules.get(who, ()):
                    if acl.host in {WILDCARD, host} and acl.operation in {AclOperation.ALL, operation}:
                        names[acl.permission].add(name)
        return names
