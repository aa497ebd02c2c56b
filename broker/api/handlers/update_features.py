"""UpdateFeatures (KIP-584): raise or lower the levels of features, all of the request or none."""

from collections.abc import Iterable

from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.configs.features import FeatureUpdate, UpgradeType
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from anabranch.s3stream.errors import StorageError

UPGRADE_TYPE_SINCE = 1
RESULTS_UNTIL = 1


async def handle(serving: Serving, request: UpdateFeaturesRequest, exchange: Exchange) -> UpdateFeaturesResponse:
    """Answer when the levels are set."""
    version = exchange.api_version
    requested = {update.feature: update for update in request.feature_updates}
    updates = []
    for name, update in requested.items():
        # As in Kafka: version 0, which has `allow_downgrade` instead of a type, cannot lower a level.
        upgrade_type = update.upgrade_type if version >= UPGRADE_TYPE_SINCE else UpgradeType.UPGRADE
        updates.append(FeatureUpdate(name, update.max_version_level, upgrade_type))
    try:
        await serving.features.update(updates, validate_only=request.validate_only)
    except KafkaError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    except StorageError as error:
        return UpdateFeaturesResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=str(error))
    results = [UpdatableFeatureResult(feature=name, error_message=ErrorCode.NONE.name) for name in requested]
    return UpdateFeaturesResponse(error_message=None, results=results if version <= RESULTS_UNTIL else ())


def refusal(_request: UpdateFeaturesRequest, _version: int) -> UpdateFeaturesResponse:
    """Return the answer to a client that is not authorized."""
    return UpdateFeaturesResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)


def _changes(request: UpdateFeaturesRequest, response: UpdateFeaturesResponse) -> Iterable[Change]:
    names = ",".join(each.feature for each in request.feature_updates)
    return (Change("FEATURE", names, response.error_code),)


API = declare(UpdateFeaturesRequest, handle, guard=needs_cluster(AclOperation.ALTER, refusal), changes=_changes)
