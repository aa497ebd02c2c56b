"""Changes to the configs of several resources in one request, for AlterConfigs and IncrementalAlterConfigs."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from anabranch.broker.api.resources.table import RESOURCES
from anabranch.broker.api.resources.values import Resource
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError


class NamedResource(Protocol):
    """Fields of a resource in both requests."""

    @property
    def resource_type(self) -> int:
        """Type code of Kafka."""
        ...

    @property
    def resource_name(self) -> str:
        """Name, or id as text."""
        ...


W = TypeVar("W", bound=NamedResource)


class ChangeOutcome(NamedTuple):
    """Outcome of a resource's change, with the fields of both responses."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


async def change_each(
    resources: Sequence[W], change: Callable[[Resource, W], Awaitable[None]]
) -> Sequence[ChangeOutcome]:
    """Change the resources in the order of the request. One that the request names twice is refused."""
    times = Counter((requested.resource_type, requested.resource_name) for requested in resources)
    outcomes = []
    for requested in resources:
        code, message = ErrorCode.NONE, None
        try:
            is_duplicate = times[requested.resource_type, requested.resource_name] > 1
            await change(_find(requested.resource_type, is_duplicate=is_duplicate), requested)
        except KafkaError as error:
            code, message = error.code, error.message
        except StorageError as error:
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
        outcomes.append(ChangeOutcome(code, message, requested.resource_type, requested.resource_name))
    return outcomes


def _find(resource_type: int, *, is_duplicate: bool) -> Resource:
    if is_duplicate:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    resource = RESOURCES.get(resource_type)
    if resource is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return resource
