"""This node's copy of the ACLs in the catalog.

The catalog stores them, and the authorizer decides by the copy, so that no request waits for the catalog. While the
catalog cannot be read the last known ACLs apply. Changes run one at a time: the catalog decides, and the copy follows.
When the answer to a change is lost, `resolve_outcomes` or the next change reads everything again.
"""

import asyncio
from collections.abc import Collection, Sequence

from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import AclRow


class ClusterAcls:
    """The ACLs of the cluster, at most `acls_max`."""

    def __init__(self, catalog: Catalog, authorizer: Authorizer, *, acls_max: int) -> None:
        self.authorizer = authorizer
        self._catalog = catalog
        self._acls_max = acls_max
        self._changes = asyncio.Lock()
        self._outcome_unknown = False
        """True while a change is under way, and after its answer was lost."""

    async def load(self) -> None:
        """Read everything: at the start, and when another node may have changed it. Raises CatalogError."""
        async with self._changes:
            await self._load()

    async def resolve_outcomes(self) -> None:
        """Read the outcome of a change whose answer was lost. Raises CatalogError."""
        async with self._changes:
            if self._outcome_unknown:
                await self._load()

    async def _load(self) -> None:
        rows = await self._catalog.list_acls(settled=self._outcome_unknown)
        self._outcome_unknown = False
        self._apply(rows)

    def _apply(self, rows: Sequence[AclRow]) -> None:
        self.authorizer.replace([_acl_of(row) for row in rows])

    async def alter(self, *, added: Collection[Acl] = (), removed: Collection[Acl] = ()) -> None:
        """Add those that do not exist yet, and remove those that do.

        Raises CatalogError, and POLICY_VIOLATION if there would be too many. The copy stays as it was until
        `resolve_outcomes` when the outcome is unknown.
        """
        async with self._changes:
            if self._outcome_unknown:
                await self._load()
            present = set(self.authorizer.acls)
            new, gone = set(added) - present, set(removed) & present
            if not new and not gone:
                return
            if len(present) + len(new) - len(gone) > self._acls_max and new:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"too many ACLs: {self._acls_max} (authorizer.acls_max)")
            self._outcome_unknown = True  # until the answer arrives
            rows = await self._catalog.alter_acls([_row_of(acl) for acl in new], [_row_of(acl) for acl in gone])
            self._outcome_unknown = False
            self._apply(rows)


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
