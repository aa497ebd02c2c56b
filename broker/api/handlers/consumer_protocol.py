"""The check that the cluster's feature level allows the consumer protocol of KIP-848."""

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.features import GROUP_VERSION
from anabranch.protocol.errors import ErrorCode, KafkaError


def check_consumer_protocol(serving: Serving) -> None:
    """Raise UNSUPPORTED_VERSION when `group.version` was lowered to 0, which turns the protocol off."""
    if serving.features.level(GROUP_VERSION) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "")
