"""The interface of guards, what they have in common, and handlers behind them.

A handler may wait before it looks a topic up. So a guard passes names that it has checked, whether they exist or not,
and no ids that it does not know: it refuses those itself.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.broker.api.access.caller import Caller, caller_of
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.registry import APIS

CLUSTER_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
TRANSACTION_DENIED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_log: FilteringBoundLogger = structlog.get_logger("requests")


class Refused(NamedTuple):
    """The request is not handled, and answered with this."""

    response: Any


class Passed(NamedTuple):
    """The request is handled, as it is here."""

    request: Any
    amend: Callable[[Any], Any] | None = None
    """Returns the answer to send for that of the handler."""
    failure: str = ""
    """Reason to close the connection after the request, which expects no answer; empty: it stays open."""


Verdict = Refused | Passed
Amend = Callable[[Any], Any]
Request = TypeVar("Request")
Guard = Callable[[Caller, Request], Verdict | Coroutine[Any, Any, Verdict]]
HandlerFunction = Callable[[Serving, Request, Exchange], Any]
"""`handle(serving, request, exchange)` returns the response, a coroutine for it, or None if it calls
`exchange.complete` itself, at once or later."""


def open_to_all(_caller: Caller, request: object) -> Passed:
    """Pass every request: Kafka does not check this API."""
    return Passed(request)


def needs_cluster(operation: AclOperation, refusal: Callable[[Request, int], object]) -> Guard[Request]:
    """Return a guard that demands an operation on the cluster. `refusal` makes the answer of request and version."""

    def guard(caller: Caller, request: Request) -> Verdict:
        if caller.may_cluster(operation):
            return Passed(request)
        return Refused(refusal(request, caller.version))

    return guard


def split(topics: Sequence[Any], is_allowed: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Return the allowed ones, and the others."""
    allowed: list[Any] = []
    denied: list[Any] = []
    for topic in topics:
        (allowed if is_allowed(topic) else denied).append(topic)
    return allowed, denied


def merged(request: Any, errors: Sequence[Any]) -> Passed:
    """Pass a request whose answer has a list `topics`, to which the errors are added."""
    if not errors:
        return Passed(request)

    def amend(response: Any) -> Any:
        return replace(response, topics=[*response.topics, *errors])

    return Passed(request, amend)


def topic_error(caller: Caller, operation: AclOperation, topic: Any) -> ErrorCode:
    """Return the error for a topic that is named by name or id; NONE if the client may do the operation."""
    name = caller.name_of(topic.name, topic.topic_id)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if caller.may_topic(operation, name) else TOPIC_DENIED


def amending(serving: Serving, exchange: Exchange, amend: Amend, further: Amend | None = None) -> Amend:
    """Return `amend`, followed by `further`. A bug in them closes this connection only."""

    def call(response: Any) -> Any:
        try:
            amended = amend(response)
        except Exception as error:  # noqa: BLE001 - the component that completes the exchange must not fail
            serving.request_failures += 1
            _log.error("request failed", api=APIS[exchange.api_key].name, version=exchange.api_version, exc_info=error)
            exchange.connection.refuse(f"internal error in {APIS[exchange.api_key].name}")
            return None
        return amended if further is None else further(amended)

    return call


def behind(
    function: HandlerFunction[Any],
    guard: Guard[Any],
    find_caller: Callable[[Serving, Exchange], Caller | None] = caller_of,
) -> HandlerFunction[Any]:
    """Return a handler that gets what the guard lets pass."""

    def handle(serving: Serving, request: Any, exchange: Exchange) -> Any:
        caller = find_caller(serving, exchange)
        if caller is None:
            return function(serving, request, exchange)
        verdict = guard(caller, request)
        if isinstance(verdict, Coroutine):
            return handle_later(verdict, serving, exchange)
        return follow(verdict, serving, exchange)

    async def handle_later(verdict: Coroutine[Any, Any, Verdict], serving: Serving, exchange: Exchange) -> Any:
        result = follow(await verdict, serving, exchange)
        return await result if isinstance(result, Coroutine) else result

    def follow(verdict: Verdict, serving: Serving, exchange: Exchange) -> Any:
        if isinstance(verdict, Refused):
            return verdict.response
        if verdict.amend is not None:
            exchange.amend = amending(serving, exchange, verdict.amend, exchange.amend)
        result = function(serving, verdict.request, exchange)
        if verdict.failure:
            exchange.connection.refuse(verdict.failure)
        return result

    return handle
