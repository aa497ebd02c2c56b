"""AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546).

An error concerns its entity only.
"""

from collections.abc import Iterable

from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.quotas.entities import (
    IP,
    QuotaAlteration,
    QuotaEntity,
    check_entity,
    check_operations,
    unresolvable,
)
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.net.ports import resolve
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    EntryDataResponse,
)
from anabranch.s3stream.errors import StorageError


async def handle(serving: Serving, request: AlterClientQuotasRequest, _exchange: Exchange) -> AlterClientQuotasResponse:
    """Answer when the quotas are set."""
    outcomes: dict[QuotaEntity, KafkaError | None] = {}
    for entry in request.entries:
        alteration = _parse(entry)
        entity = alteration.entity
        operations = dict(alteration.operations)
        if entity in outcomes or len(operations) < len(alteration.operations):
            # As in Kafka, which reports an entity with a duplicate key the same way. The first value has been set.
            outcomes[entity] = KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {entity}")
            continue
        try:
            types = check_entity(entity)
            await _check_address(entity)
            check_operations(operations, types)
            if not request.validate_only and operations:
                await serving.quota_table.alter(entity, operations)
        except KafkaError as error:
            outcomes[entity] = error
        except StorageError as error:
            outcomes[entity] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        else:
            outcomes[entity] = None
    return AlterClientQuotasResponse(
        entries=[
            EntryDataResponse(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
            )
            for entity, error in outcomes.items()
        ]
    )


def _parse(entry: EntryData) -> QuotaAlteration:
    """Return an entry's change. As in Kafka, the last of several names of one type counts."""
    entity = QuotaEntity.of({part.entity_type: part.entity_name for part in entry.entity})
    return QuotaAlteration(entity, [(each.key, None if each.remove else each.value) for each in entry.ops])


async def _check_address(entity: QuotaEntity) -> None:
    """Raise INVALID_REQUEST for the name of an address that cannot be resolved."""
    address = dict(entity.parts).get(IP)
    if address is not None:
        try:
            await resolve(address)
        except OSError:
            raise unresolvable(address) from None


def refusal(request: AlterClientQuotasRequest, _version: int) -> AlterClientQuotasResponse:
    """Return the answer to a client that is not authorized."""
    return AlterClientQuotasResponse(
        entries=[
            EntryDataResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message, entity=entry.entity)
            for entry in request.entries
        ]
    )


def _changes(_request: AlterClientQuotasRequest, response: AlterClientQuotasResponse) -> Iterable[Change]:
    for each in response.entries:
        names = ", ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in each.entity)
        yield Change("CLIENT_QUOTA", names, each.error_code)


API = declare(
    AlterClientQuotasRequest,
    handle,
    guard=needs_cluster(AclOperation.ALTER_CONFIGS, refusal),
    changes=_changes,
)
