"""The interface of guards, and handlers behind them.

A handler may wait before it looks a topic up. So a guard passes names that it has checked, whether they exist or not,
and no ids that it does not know: it refuses those itself.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.broker.api.handlers import Handler, HandlerFunction
from anabranch.broker.api.handlers.caller import Caller, caller_of
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.registry import APIS

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
Guard = Callable[[Caller, Any], Verdict | Coroutine[Any, Any, Verdict]]


def open_to_all(_caller: Caller, request: Any) -> Passed:
    """Pass every request: Kafka does not check this API."""
    return Passed(request)


def needs_cluster(operation: AclOperation, refusal: Callable[[Any, int], Any]) -> Guard:
    """Return a guard that demands an operation on the cluster. `refusal` makes the answer of request and version."""

    def guard(caller: Caller, request: Any) -> Verdict:
        if caller.may_cluster(operation):
            return Passed(request)
        return Refused(refusal(request, caller.version))

    return guard


def guarded(handlers: Mapping[int, Handler], guards: Mapping[int, Guard]) -> Mapping[int, Handler]:
    """Return the handlers behind their guards. An API without a guard is an error."""
    return {key: replace(handler, function=_behind(handler.function, guards[key])) for key, handler in handlers.items()}


def amending(node: Node, exchange: Exchange, amend: Amend, further: Amend | None = None) -> Amend:
    """Return `amend`, followed by `further`. A bug in them closes this connection only."""

    def call(response: Any) -> Any:
        try:
            amended = amend(response)
        except Exception as error:  # noqa: BLE001 - the component that completes the exchange must not fail
            node.request_failures += 1
            _log.error("request failed", api=APIS[exchange.api_key].name, version=exchange.api_version, exc_info=error)
            exchange.connection.refuse(f"internal error in {APIS[exchange.api_key].name}")
            return None
        return amended if further is None else further(amended)

    return call


def _behind(function: HandlerFunction, guard: Guard) -> HandlerFunction:
    def handle(node: Node, request: Any, exchange: Exchange) -> Any:
        caller = caller_of(node, exchange)
        if caller is None:
            return function(node, request, exchange)
        verdict = guard(caller, request)
        if isinstance(verdict, Coroutine):
            return handle_later(verdict, node, exchange)
        return follow(verdict, node, exchange)

    async def handle_later(verdict: Coroutine[Any, Any, Verdict], node: Node, exchange: Exchange) -> Any:
        result = follow(await verdict, node, exchange)
        return await result if isinstance(result, Coroutine) else result

    def follow(verdict: Verdict, node: Node, exchange: Exchange) -> Any:
        if isinstance(verdict, Refused):
            return verdict.response
        if verdict.amend is not None:
            exchange.amend = amending(node, exchange, verdict.amend, exchange.amend)
        result = function(node, verdict.request, exchange)
        if verdict.failure:
            exchange.connection.refuse(verdict.failure)
        return result

    return handle
