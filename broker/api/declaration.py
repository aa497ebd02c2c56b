"""The declaration of an API: its handler, and every other fact that the node must know of it.

The module of a handler ends with `API = declare(...)`. Key, name and versions are those of the request's message.
Dispatcher, authorization, audit, quotas, connections and relays between nodes read the facts here, and know no API.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from anabranch.broker.api.access.changes import Changes, Subject, recording
from anabranch.broker.api.access.guard import Guard, HandlerFunction, behind
from anabranch.broker.api.waits import WaitsFor
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.protocol.api import Api
from anabranch.protocol.registry import APIS, INTERNAL_APIS

_APIS: Final = {api.request: api for api in (*APIS.values(), *INTERNAL_APIS.values())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """An API that is served, in an inclusive range of versions."""

    api: Api
    min_version: int
    max_version: int
    function: HandlerFunction[Any]
    guard: Guard[Any]
    """Decides what the client may do of a request."""
    changes: Changes[Any] | None
    """Names the changes of an administrator for the audit log; None: it changes nothing."""
    subject: Subject[Any] | None
    """Names what is changed before it is gone; None: `changes` name it."""
    waits_for: WaitsFor | None
    """Decides whether a request waits until the node serves what it names; None: it never does."""
    reads: bool
    """True if its answers depend on this node's ownership. The acknowledgement of an append proves it as well."""
    relayed: bool
    """True if a node asks it for another one: only a leader or a coordinator can answer."""
    local_version: int
    """Version in which nodes ask themselves and each other."""
    pipelined: bool
    """True if requests start next to each other, keep their frames, which records refer to, and wait by themselves."""
    metered: Metered
    """Resources that requests use up of their clients' quotas."""
    of_telemetry: bool
    """True if it is advertised only by nodes that take metrics of clients (KIP-714)."""

    @property
    def advertised_min_version(self) -> int:
        """Lowest version named in ApiVersions. Produce advertises more than it serves (see the registry)."""
        return min(self.min_version, self.api.advertised_min_version)

    def may_answer(self, serving: Serving) -> bool:
        """Return whether a node may answer now: it must have proved that it owns what it reads."""
        return not self.reads or serving.ownership.is_proved


Request = TypeVar("Request")


def declare(  # noqa: PLR0913 - the facts of an API
    request: type[Request],
    function: HandlerFunction[Request],
    *,
    guard: Guard[Request],
    changes: Changes[Request] | None = None,
    subject: Subject[Request] | None = None,
    waits_for: WaitsFor | None = None,
    reads: bool = False,
    relayed: bool = False,
    local_version: int | None = None,
    pipelined: bool = False,
    metered: Metered = Metered.TIME,
    of_telemetry: bool = False,
) -> Handler:
    """Return the handler of an API with its facts, which `Handler` explains.

    What a request waits for is owned by this node, so `waits_for` implies `reads`. `local_version` is the newest one
    unless it is given.
    """
    api = _APIS[request]
    return Handler(
        api=api,
        min_version=api.min_version,
        max_version=api.max_version,
        function=function,
        guard=guard,
        changes=changes,
        subject=subject,
        waits_for=waits_for,
        reads=reads or waits_for is not None,
        relayed=relayed,
        local_version=api.max_version if local_version is None else local_version,
        pipelined=pipelined,
        metered=metered,
        of_telemetry=of_telemetry,
    )


Handlers = Mapping[int, Handler]
"""Handlers by API key."""


def guarded(handlers: Handlers) -> Handlers:
    """Return the handlers behind their guards."""
    return {key: replace(each, function=behind(each.function, each.guard)) for key, each in handlers.items()}


def audited(handlers: Handlers) -> Handlers:
    """Return the handlers, of which those that change resources record audit events."""
    return {
        key: each
        if each.changes is None
        else replace(each, function=recording(each.api.name, each.function, each.changes, each.subject))
        for key, each in handlers.items()
    }
