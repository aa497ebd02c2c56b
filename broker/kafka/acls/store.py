"""This node's copy of the ACLs in the catalog.

The catalog stores them, and the authorizer decides by the copy, so that no request waits for the catalog.
"""

from collections.abc import Collection, Sequence

from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.kafka.catalog_copy import CatalogCopy
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import AclRow


class ClusterAcls(CatalogCopy[Sequence[AclRow]]):
    """The ACLs of the cluster, at most `acls_max`."""

    def __init__(self, catalog: Catalog, authorizer: Authorizer, *, acls_max: int) -> None:
        super().__init__(lambda settled: catalog.list_acls(settled=settled), self._apply)
        self.authorizer = authorizer
        self._catalog = catalog
        self._acls_max = acls_max

    def _apply(self, rows: Sequence[AclRow]) -> None:
        self.authorizer.replace([_acl_of(row) for row in rows])

    async def alter(self, *, added: Collection[Acl] = (), removed: Collection[Acl] = ()) -> None:
        """Add those that do not exist yet, and remove those that do.

        Raises CatalogError, and POLICY_VIOLATION if there would be too many. The copy stays as it was until
        `resolve_outcomes` when the outcome is unknown.
        """
        async with self._changing():
            present = set(self.authorizer.acls)
            new, gone = set(added) - present, set(removed) & present
            if len(present) + len(new) - len(gone) > self._acls_max and new:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"too many ACLs: {self._acls_max} (authorizer.acls_max)")
            # All of them: another node may have removed what seems to exist here, or added what does not.
            change = self._catalog.alter_acls([_row_of(acl) for acl in added], [_row_of(acl) for acl in removed])
            self._apply(await self._answer(change))


def _acl_of(row: AclRow) -> Acl:
    return Acl(
        AclResourceType(row.resource_type),
        row.resource_name,
        PatternType(row.pattern_type),
        row.principal,
        row.host,
        AclOperation(row.operation),
        Permission(row.permission),
    )


def _row_of(acl: Acl) -> AclRow:
    return AclRow(
        int(acl.resource_type),
        acl.resource_name,
        int(acl.pattern_type),
        acl.principal,
        acl.host,
        int(acl.operation),
        int(acl.permission),
    )
