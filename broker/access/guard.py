"""The interface of guards, and handlers behind them.

A handler may wait before it looks a topic up. So a guard passes names that it has checked, whether they exist or not,
and no ids that it does not know: it refuses those itself.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from broker.acls.model import AclOperation
from broker.handlers import Handler, HandlerFunction
from broker.handlers.caller import Caller, caller_of
from broker.net.exchange import Exchange
from broker.node import Node


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
        exchange.amend = verdict.amend
        result = function(node, verdict.request, exchange)
        if verdict.failure:
            exchange.connection.refuse(verdict.failure)
        return result

    return handle
