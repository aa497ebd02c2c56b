"""Faults of single requests, of any API: an error, a lost connection, a delay, a throttle.

The next requests of an API meet its faults in the order in which they were asked for. A Produce request with acks=0 has
no answer that could fail, and meets none.

A request that fails is not carried out: its guard makes the answer, as for a client that may do nothing, and the error
takes the place of the denial. What the guard lets pass all the same (Fetch, Metadata of all topics) only reads.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Final

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import behind
from anabranch.broker.api.declaration import Handler, Handlers
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.produce import ProduceRequest

_Fault = Callable[[Handler, Serving, Any, Exchange], Any]
"""Treatment of a request instead of calling its handler, with the result that a handler has."""
DROPPED: Final = "a test has asked for it"


class RequestFaults:
    """The faults that requests of clients are about to meet."""

    def __init__(self) -> None:
        self.is_cut = False
        """True while every request ends its connection."""
        self._next: dict[int, deque[_Fault]] = defaultdict(deque)
        """By API key."""
        self._delayed: set[asyncio.Task[None]] = set()
        """Requests whose handlers run after their delay, which the event loop does not keep alive."""

    def clear(self) -> None:
        """End all faults. Requests that wait already continue to."""
        self.is_cut = False
        self._next.clear()

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return the handlers, which meet the faults."""
        return {key: replace(each, function=partial(self._handle, each)) for key, each in handlers.items()}

    def _handle(self, usual: Handler, serving: Serving, request: Any, exchange: Exchange) -> Any:
        if self.is_cut:
            exchange.connection.refuse(DROPPED)
            return None
        faults = self._next.get(usual.api.key)
        is_unanswered = isinstance(request, ProduceRequest) and request.acks == 0
        if not faults or is_unanswered:
            return usual.function(serving, request, exchange)
        return faults.popleft()(usual, serving, request, exchange)

    def fail(self, api_key: int, code: ErrorCode, *, times: int, applied: bool) -> None:
        """Answer with an error; with `applied`, after the request was carried out."""

        def act(usual: Handler, serving: Serving, request: Any, exchange: Exchange) -> Any:
            exchange.amend = partial(with_error, code=code)
            function = usual.function if applied else behind(usual.function, usual.guard, _nobody)
            return function(serving, request, exchange)

        self._next[api_key].extend([act] * times)

    def drop(self, api_key: int, *, times: int, applied: bool) -> None:
        """Close the connection instead of answering; with `applied`, after the request was carried out."""

        def act(usual: Handler, serving: Serving, request: Any, exchange: Exchange) -> Any:
            if applied:
                exchange.amend = lambda _: exchange.connection.refuse(DROPPED)
                return usual.function(serving, request, exchange)
            exchange.connection.refuse(DROPPED)
            return None

        self._next[api_key].extend([act] * times)

    def delay(self, api_key: int, delay_s: float, *, times: int) -> None:
        """Carry the request out after a time. Those behind it on its connection wait, too."""

        def act(usual: Handler, serving: Serving, request: Any, exchange: Exchange) -> None:
            exchange.connection.hold(exchange)
            asyncio.get_running_loop().call_later(delay_s, self._continue, usual, serving, request, exchange)

        self._next[api_key].extend([act] * times)

    def _continue(self, usual: Handler, serving: Serving, request: Any, exchange: Exchange) -> None:
        if exchange.closed:
            return
        response = usual.function(serving, request, exchange)
        if isinstance(response, Coroutine):
            task = asyncio.get_running_loop().create_task(_complete(response, exchange))
            self._delayed.add(task)
            task.add_done_callback(self._delayed.discard)
        elif response is not None:
            exchange.complete(response)

    def throttle(self, api_key: int, throttle_ms: int, *, times: int) -> None:
        """Answer with a throttle time, and read nothing from the connection meanwhile, as with a quota (KIP-219)."""

        def act(usual: Handler, serving: Serving, request: Any, exchange: Exchange) -> Any:
            exchange.connection.mute(throttle_ms / 1000)
            exchange.amend = lambda response: replace(response, throttle_time_ms=throttle_ms)
            return usual.function(serving, request, exchange)

        self._next[api_key].extend([act] * times)


async def _complete(work: Coroutine[Any, Any, Any], exchange: Exchange) -> None:
    exchange.complete(await work)


class _Nobody(Caller):
    """A client that may do nothing, which is no event for the audit log."""

    def topics(self, operation: AclOperation, names: Iterable[str], *, audited: bool = True) -> set[str]:
        """Return none, or all where the check only filters an answer: its topics are to have the error."""
        return super().topics(operation, names) if audited else set(names)

    def denied(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> None:
        pass


def _nobody(serving: Serving, exchange: Exchange) -> Caller:
    return _Nobody(serving, exchange, Authorizer())


def with_error(response: Any, code: ErrorCode) -> Any:
    """Return a response with an error in each of its innermost parts that can have one."""
    amended, _ = _with_error(response, code)
    return amended


def _with_error(part: Any, code: ErrorCode) -> tuple[Any, bool]:
    """Return a part of a response with the error, and whether it has a place for one."""
    changes: dict[str, Any] = {}
    names = [each.name for each in fields(part)]
    for name in names:
        value = getattr(part, name)
        if isinstance(value, list | tuple) and value and all(map(is_dataclass, value)):
            inner = [_with_error(each, code) for each in value]
            if any(has_place for _, has_place in inner):
                changes[name] = [each for each, _ in inner]
    if not changes and "error_code" in names:
        changes["error_code"] = code
        if "error_message" in names:
            changes["error_message"] = code.message
    return (replace(part, **changes) if changes else part), bool(changes)
