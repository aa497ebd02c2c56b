"""All endpoints of the API, registered with the admin port's router."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.operator.admin.api.acls import AclEndpoints
from anabranch.broker.operator.admin.api.audit import AuditEndpoints
from anabranch.broker.operator.admin.api.balance import BalanceEndpoints
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.cluster import ClusterEndpoints
from anabranch.broker.operator.admin.api.compaction import CompactionEndpoints
from anabranch.broker.operator.admin.api.connect import ConnectEndpoints
from anabranch.broker.operator.admin.api.cost import CostEndpoints
from anabranch.broker.operator.admin.api.delegation_tokens import TokenEndpoints
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, openapi_document
from anabranch.broker.operator.admin.api.figures import FigureEndpoints
from anabranch.broker.operator.admin.api.group_changes import GroupChangeEndpoints
from anabranch.broker.operator.admin.api.groups import GroupEndpoints, Groups
from anabranch.broker.operator.admin.api.live import LiveEndpoints
from anabranch.broker.operator.admin.api.nodes import NodeEndpoints
from anabranch.broker.operator.admin.api.offsets import Offsets
from anabranch.broker.operator.admin.api.partition_moves import PartitionMoveEndpoints
from anabranch.broker.operator.admin.api.produce import ProduceEndpoints
from anabranch.broker.operator.admin.api.quotas import QuotaEndpoints
from anabranch.broker.operator.admin.api.records import RecordEndpoints
from anabranch.broker.operator.admin.api.schemas import Schemas
from anabranch.broker.operator.admin.api.sizes import Sizes
from anabranch.broker.operator.admin.api.status import StatusEndpoints
from anabranch.broker.operator.admin.api.stopped import StoppedEndpoints
from anabranch.broker.operator.admin.api.storage import StorageEndpoints
from anabranch.broker.operator.admin.api.tables import TableEndpoints
from anabranch.broker.operator.admin.api.topic_changes import TopicChangeEndpoints
from anabranch.broker.operator.admin.api.topic_moves import TopicMoveEndpoints
from anabranch.broker.operator.admin.api.topics import TopicEndpoints, Topics
from anabranch.broker.operator.admin.api.transactions import TransactionEndpoints
from anabranch.broker.operator.admin.api.users import UserEndpoints
from anabranch.broker.operator.admin.paths import API_PREFIX

USER: web.RequestKey[User] = web.RequestKey("user", User)
MAY_OPERATE: web.RequestKey[bool] = web.RequestKey("may_operate", bool)
IS_ALLOWED: web.RequestKey[Callable[[], bool]] = web.RequestKey("is_allowed")
"""Returns whether the client may still send the request: its token may have been revoked."""
"""Findings of the access control about the sender of a request."""


class Api:
    """The endpoints of a node. `random_bytes` returns that many unpredictable bytes."""

    def __init__(
        self, node: Node, local: LocalRequests, settings: AdminSettings, random_bytes: Callable[[int], bytes]
    ) -> None:
        serving = node.serving
        calls = self.calls = Calls(serving, local)
        offsets, groups = Offsets(calls), Groups(serving, calls)
        topics = Topics(serving, calls, local, offsets, Sizes(calls), groups)
        self._records = RecordEndpoints(node, calls, offsets, Schemas(settings, serving))
        self.endpoints: list[Endpoint] = [
            *ClusterEndpoints(serving, calls).endpoints,
            *FigureEndpoints(calls).endpoints,
            *BalanceEndpoints(serving, calls, local).endpoints,
            *CostEndpoints(serving, calls).endpoints,
            *NodeEndpoints(serving, node.upkeep.failover, calls).endpoints,
            *StatusEndpoints(node).endpoints,
            *TopicEndpoints(topics).endpoints,
            *TopicChangeEndpoints(serving, topics, local).endpoints,
            *TopicMoveEndpoints(node).endpoints,
            *PartitionMoveEndpoints(serving, local).endpoints,
            *self._records.endpoints,
            *ProduceEndpoints(serving, calls).endpoints,
            *GroupEndpoints(groups, offsets).endpoints,
            *GroupChangeEndpoints(serving, calls, groups, offsets).endpoints,
            *TransactionEndpoints(serving, calls).endpoints,
            *UserEndpoints(serving, local, random_bytes).endpoints,
            *AclEndpoints(serving, local).endpoints,
            *TokenEndpoints(serving).endpoints,
            *QuotaEndpoints(serving, local).endpoints,
            *AuditEndpoints(serving).endpoints,
            *StorageEndpoints(node, calls).endpoints,
            *StoppedEndpoints(serving).endpoints,
            *TableEndpoints(node, calls, offsets, local).endpoints,
            *CompactionEndpoints(node).endpoints,
            *ConnectEndpoints(settings).endpoints,
            *LiveEndpoints(node).endpoints,
            Endpoint("GET", "/openapi.json", "This document.", self._document, None),
        ]

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        from anabranch.broker.operator.admin.iceberg import table_paths
        from anabranch.broker.operator.admin.schema_registry import registry_paths

        document = openapi_document(self.endpoints)
        document["paths"].update(registry_paths())
        document["paths"].update(table_paths())
        return document

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes of all endpoints."""
        for endpoint in self.endpoints:
            path = endpoint.path.replace("}", ":[^/]+}")  # names may have braces, which aiohttp would leave out
            router.add_route(endpoint.method, API_PREFIX + path, _handler(endpoint))

    def close(self) -> None:
        """Read no more records."""
        self._records.close()

    async def _document(self, _: Call) -> web.StreamResponse:
        return web.json_response(self.document())


def _handler(endpoint: Endpoint) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await endpoint.answer_to(
            request, request[USER], may_operate=request[MAY_OPERATE], is_allowed=request[IS_ALLOWED]
        )

    return handle
