"""DescribeClientQuotas: the quotas of the entities that match a filter (KIP-546)."""

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.quotas.table import FilterComponent
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)


def handle(serving: Serving, request: DescribeClientQuotasRequest, _exchange: Exchange) -> DescribeClientQuotasResponse:
    """Answer from this node's copy."""
    components = [FilterComponent(each.entity_type, each.match_type, each.match) for each in request.components]
    try:
        found = serving.quota_table.find(components, strict=request.strict)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(
        error_message="",  # as in Kafka
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
                values=[ValueData(key=key, value=value) for key, value in sorted(quotas.items())],
            )
            for entity, quotas in found.items()
        ],
    )


def refusal(_request: DescribeClientQuotasRequest, _version: int) -> DescribeClientQuotasResponse:
    """Return the answer to a client that is not authorized."""
    return DescribeClientQuotasResponse(error_code=CLUSTER_DENIED, error_message=None, entries=None)


API = declare(DescribeClientQuotasRequest, handle, guard=needs_cluster(AclOperation.DESCRIBE_CONFIGS, refusal))
