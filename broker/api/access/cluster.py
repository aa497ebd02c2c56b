"""Guards of the APIs for the cluster and for configs. A refused client gets Kafka's answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from anabranch.broker.api.access.guard import Passed, Verdict
from anabranch.broker.api.access.records import DENIED
from anabranch.broker.api.handlers.caller import Caller
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryDataResponse,
)
from anabranch.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResourceResponse
from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from anabranch.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from anabranch.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from anabranch.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from anabranch.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from anabranch.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from anabranch.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from anabranch.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from anabranch.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResponse,
)
from anabranch.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from anabranch.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from anabranch.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

CODE: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED


def describe_cluster(caller: Caller, request: DescribeClusterRequest) -> Verdict:
    """Pass all requests, and name the operations that the client may do."""
    if not request.include_cluster_authorized_operations:
        return Passed(request)

    def amend(response: DescribeClusterResponse) -> DescribeClusterResponse:
        if response.error_code:
            return response
        return replace(response, cluster_authorized_operations=caller.cluster_operations())

    return Passed(request, amend)


# answers to requests that need an operation on the cluster


def describe_acls_refusal(_request: DescribeAclsRequest, _version: int) -> DescribeAclsResponse:
    """Return the answer to a DescribeAcls request."""
    return DescribeAclsResponse(error_code=CODE, error_message=CODE.message)


def create_acls_refusal(request: CreateAclsRequest, _version: int) -> CreateAclsResponse:
    """Return the answer to a CreateAcls request."""
    result = AclCreationResult(error_code=CODE, error_message=CODE.message)
    return CreateAclsResponse(results=[result] * len(request.creations))


def delete_acls_refusal(request: DeleteAclsRequest, _version: int) -> DeleteAclsResponse:
    """Return the answer to a DeleteAcls request."""
    result = DeleteAclsFilterResult(error_code=CODE, error_message=CODE.message)
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


def alter_replica_log_dirs_refusal(request: AlterReplicaLogDirsRequest, _version: int) -> AlterReplicaLogDirsResponse:
    """Return the answer to an AlterReplicaLogDirs request."""
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=CODE)
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def describe_log_dirs_refusal(_request: DescribeLogDirsRequest, _version: int) -> DescribeLogDirsResponse:
    """Return the answer to a DescribeLogDirs request."""
    return DescribeLogDirsResponse(error_code=CODE)


def elect_leaders_refusal(request: ElectLeadersRequest, _version: int) -> ElectLeadersResponse:
    """Return the answer to an ElectLeaders request."""
    return ElectLeadersResponse(
        error_code=CODE,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=CODE, error_message=CODE.message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def alter_reassignments_refusal(
    request: AlterPartitionReassignmentsRequest, _version: int
) -> AlterPartitionReassignmentsResponse:
    """Return the answer to an AlterPartitionReassignments request."""
    return AlterPartitionReassignmentsResponse(
        error_code=CODE,
        error_message=CODE.message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index, error_code=CODE, error_message=CODE.message
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def list_reassignments_refusal(
    request: ListPartitionReassignmentsRequest, _version: int
) -> ListPartitionReassignmentsResponse:
    """Return the answer to a ListPartitionReassignments request."""
    return ListPartitionReassignmentsResponse(
        error_code=CODE,
        error_message=CODE.message,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[OngoingPartitionReassignment(partition_index=index) for index in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ],
    )


def describe_quorum_refusal(_request: DescribeQuorumRequest, _version: int) -> DescribeQuorumResponse:
    """Return the answer to a DescribeQuorum request."""
    return DescribeQuorumResponse(error_code=CODE, error_message=CODE.message)


def update_features_refusal(_request: UpdateFeaturesRequest, _version: int) -> UpdateFeaturesResponse:
    """Return the answer to an UpdateFeatures request."""
    return UpdateFeaturesResponse(error_code=CODE, error_message=CODE.message)


def unregister_broker_refusal(_request: UnregisterBrokerRequest, _version: int) -> UnregisterBrokerResponse:
    """Return the answer to an UnregisterBroker request."""
    return UnregisterBrokerResponse(error_code=CODE, error_message=CODE.message)


def describe_scram_refusal(
    request: DescribeUserScramCredentialsRequest, _version: int
) -> DescribeUserScramCredentialsResponse:
    """Return the answer to a DescribeUserScramCredentials request: a result for each user, without a name."""
    results = [DescribeUserScramCredentialsResult(error_code=CODE, error_message=None)] * len(request.users or ())
    return DescribeUserScramCredentialsResponse(error_code=CODE, error_message=None, results=results)


def alter_scram_refusal(request: AlterUserScramCredentialsRequest, _version: int) -> AlterUserScramCredentialsResponse:
    """Return the answer to an AlterUserScramCredentials request."""
    users = dict.fromkeys(each.name for changes in (request.deletions, request.upsertions) for each in changes)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=CODE, error_message=CODE.message) for user in users
        ]
    )


def list_config_resources_refusal(_request: ListConfigResourcesRequest, _version: int) -> ListConfigResourcesResponse:
    """Return the answer to a ListConfigResources request."""
    return ListConfigResourcesResponse(error_code=CODE)


def describe_quotas_refusal(_request: DescribeClientQuotasRequest, _version: int) -> DescribeClientQuotasResponse:
    """Return the answer to a DescribeClientQuotas request."""
    return DescribeClientQuotasResponse(error_code=CODE, error_message=None, entries=None)


def alter_quotas_refusal(request: AlterClientQuotasRequest, _version: int) -> AlterClientQuotasResponse:
    """Return the answer to an AlterClientQuotas request."""
    return AlterClientQuotasResponse(
        entries=[
            EntryDataResponse(error_code=CODE, error_message=CODE.message, entity=entry.entity)
            for entry in request.entries
        ]
    )


# configs


def _denial(caller: Caller, operation: AclOperation, resource_type: int, name: str) -> ErrorCode | None:
    """Return the error for a resource whose configs the client may not see or change; None for unknown types, too."""
    if resource_type == ResourceType.TOPIC:
        return None if caller.may_topic(operation, name) else DENIED
    if resource_type == ResourceType.GROUP:
        return None if caller.may_group(operation, name) else GROUP_DENIED
    if resource_type in {ResourceType.BROKER, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS}:
        return None if caller.may_cluster(operation) else CODE
    return None  # it is refused


def describe_configs(caller: Caller, request: DescribeConfigsRequest) -> Verdict:
    """Check DESCRIBE_CONFIGS on each resource: the cluster for nodes, loggers and subscriptions."""
    allowed, errors = [], []
    for each in request.resources:
        code = _denial(caller, AclOperation.DESCRIBE_CONFIGS, each.resource_type, each.resource_name)
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


def alter_configs(caller: Caller, request: AlterConfigsRequest) -> Verdict:
    """Check ALTER_CONFIGS on each resource."""
    return _altered(caller, request, AlterConfigsResourceResponse)


def incremental_alter_configs(caller: Caller, request: IncrementalAlterConfigsRequest) -> Verdict:
    """Check ALTER_CONFIGS on each resource."""
    return _altered(caller, request, IncrementalResponse)


def _altered(
    caller: Caller, request: Any, error_type: type[AlterConfigsResourceResponse] | type[IncrementalResponse]
) -> Verdict:
    counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
    allowed, errors = [], []
    for each in request.resources:
        code = None
        if counts[each.resource_type, each.resource_name] == 1:
            code = _denial(caller, AclOperation.ALTER_CONFIGS, each.resource_type, each.resource_name)
        if code is None:
            allowed.append(each)
        else:
            told = None if each.resource_type == ResourceType.BROKER_LOGGER else code.message
            errors.append(
                error_type(
                    error_code=code,
                    error_message=told,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
            )

    def amend(response: Any) -> Any:
        responses: Sequence[Any] = response.responses
        return replace(response, responses=[*responses, *errors])

    return Passed(replace(request, resources=allowed), amend if errors else None)
