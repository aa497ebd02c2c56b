"""DescribeConfigs: configs of topics, nodes, loggers, groups and subscriptions, with Kafka's sources and synonyms."""

from collections.abc import Sequence
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.configs import denial
from anabranch.broker.api.access.guard import Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.resources.loggers import UNKNOWN_TYPE
from anabranch.broker.api.resources.table import RESOURCES
from anabranch.broker.api.resources.values import ConfigValue
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(serving: Serving, request: DescribeConfigsRequest, _exchange: Exchange) -> DescribeConfigsResponse:
    """Describe each resource; an error concerns its resource only."""
    return DescribeConfigsResponse(results=[_resource(serving, request, requested) for requested in request.resources])


def _resource(
    serving: Serving, request: DescribeConfigsRequest, requested: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        values = _values(serving, requested)
    except KafkaError as error:
        # As in Kafka: an unknown topic has a code and an empty message.
        message = "" if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error.message
        return DescribeConfigsResult(
            error_code=error.code,
            error_message=message,
            resource_type=requested.resource_type,
            resource_name=requested.resource_name,
        )
    keys = requested.configuration_keys
    return DescribeConfigsResult(
        error_message="",
        resource_type=requested.resource_type,
        resource_name=requested.resource_name,
        configs=[_result(request, value) for value in values if not keys or value.name in keys],
    )


def _values(serving: Serving, requested: DescribeConfigsResource) -> Sequence[ConfigValue]:
    resource = RESOURCES.get(requested.resource_type)
    if resource is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {requested.resource_type}")
    return resource.describe(serving, requested.resource_name)


def _result(request: DescribeConfigsRequest, value: ConfigValue) -> DescribeConfigsResourceResult:
    synonyms = [DescribeConfigsSynonym(name=name, value=text, source=source) for name, text, source in value.synonyms]
    documentation = value.documentation if request.include_documentation else None
    return DescribeConfigsResourceResult(
        name=value.name,
        value=value.value,
        read_only=value.read_only,
        config_source=value.source,
        is_sensitive=False,
        synonyms=synonyms if request.include_synonyms else (),
        config_type=value.type,
        documentation="" if value.type == UNKNOWN_TYPE else documentation,
    )


def guard(caller: Caller, request: DescribeConfigsRequest) -> Verdict:
    """Check DESCRIBE_CONFIGS on each resource: the cluster for nodes, loggers and subscriptions."""
    allowed, errors = [], []
    for each in request.resources:
        code = denial(caller, AclOperation.DESCRIBE_CONFIGS, each.resource_type, each.resource_name)
        if code is None:
            allowed.append(each)
        else:
            errors.append(
                DescribeConfigsResult(
                    error_code=code,
                    error_message=code.message,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
            )

    def amend(response: DescribeConfigsResponse) -> DescribeConfigsResponse:
        return replace(response, results=[*response.results, *errors])

    return Passed(replace(request, resources=allowed), amend if errors else None)


API = declare(DescribeConfigsRequest, handle, guard=guard)
