"""Handlers of Produce and Fetch that trace a share of the requests. Only imported when tracing is on.

A request has no task of its own, so its span is built from moments: of its frame, of its handler's call and return, and
of its response, which `Exchange.amend` sees. A request whose connection is closed before has no span.

Spans name topics, partitions, offsets, sizes and ids, and never hold keys, values or headers of records.
"""

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from struct import Struct
from types import CoroutineType
from typing import Any, Final

from opentelemetry.trace import Link

from anabranch.broker.api.access.guard import HandlerFunction
from anabranch.broker.api.declaration import Handlers
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.tracing.tracer import Attribute, NodeTracer, Step, Work
from anabranch.protocol.errors import KafkaError, ProtocolError
from anabranch.protocol.messages import fetch, produce
from anabranch.protocol.messages.fetch import FetchResponse
from anabranch.protocol.messages.produce import ProduceRequest, ProduceResponse
from anabranch.protocol.records import first_records
from anabranch.protocol.wire import Records
from anabranch.wal.interface import Buffer

TEXT_MAX: Final = 256
"""Characters of a name in a span."""
BATCHES_MAX: Final = 16
"""Batches that the span of a request names."""
LINKED_BATCHES_MAX: Final = 4
"""Batches of a request in which trace contexts are looked for."""
LINKED_RECORDS_MAX: Final = 8
"""Records of each of them, from the first one on."""
LINKED_BYTES_MAX: Final = 64 * 1024
"""Bytes of each of them, decompressed."""
_BASE_OFFSET: Final = Struct(">q")


def traced(handlers: Handlers, tracer: NodeTracer) -> Handlers:
    """Return the handlers, of which those of Produce and Fetch trace a share of their requests."""
    kinds: Mapping[int, type[_Request]] = {produce.KEY: _Produce, fetch.KEY: _Fetch}
    return {
        key: replace(handler, function=_traced(handler.function, kinds[key], tracer)) if key in kinds else handler
        for key, handler in handlers.items()
    }


def _traced(function: HandlerFunction[Any], kind: "type[_Request]", tracer: NodeTracer) -> HandlerFunction[Any]:
    def handle(serving: Serving, request: Any, exchange: Exchange) -> Any:
        if not tracer.is_sampled():
            return function(serving, request, exchange)
        call = kind(tracer, serving, request, exchange)
        exchange.amend = call.answered
        result = function(serving, request, exchange)
        if type(result) is CoroutineType:
            return call.follow(result)
        if exchange.done:
            call.finish(None)  # a Produce that expects no response
        elif result is None:
            call.returned_ns = tracer.now_ns()
        return result

    return handle


class _Request:
    """A request that is traced."""

    NAME: str
    TYPE: str
    """Type of the operation in OpenTelemetry's conventions."""

    def __init__(self, tracer: NodeTracer, serving: Serving, request: Any, exchange: Exchange) -> None:
        self.tracer = tracer
        self.serving = serving
        self.request = request
        self.exchange = exchange
        self.handled_ns = tracer.now_ns()
        self.started_ns = self.handled_ns - int((exchange.connection.clock() - exchange.started) * 1e9)
        self.returned_ns = 0
        """Moment at which the handler has returned to wait without a task; 0: it does not."""
        self._is_finished = False

    def answered(self, response: Any) -> Any:
        """Return the response unchanged, once the span is ended."""
        self.finish(response)
        return response

    def finish(self, response: Any | None) -> None:
        """End the span, once. Never raises."""
        if self._is_finished:
            return
        self._is_finished = True
        try:
            self.end(response, self.tracer.now_ns())
        except Exception as error:  # noqa: BLE001 - a bug in tracing must not fail the request
            self.tracer.failed(error)

    async def follow(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a handler that waits in a task."""
        response = await work
        if response is None:
            self.finish(None)
        return response

    def end(self, response: Any | None, now_ns: int) -> None:
        """Create the span and its steps."""
        raise NotImplementedError

    def steps(self, doing: str, waiting: str, now_ns: int) -> Iterator[Step]:
        """Yield the steps of the request: decoded, handled, and waited for what the handler has begun."""
        yield Step("decode", self.started_ns, self.handled_ns)
        returned_ns = self.returned_ns or now_ns
        yield Step(doing, self.handled_ns, returned_ns)
        if self.returned_ns:
            yield Step(waiting, returned_ns, now_ns)

    def name(self, topics: Sequence[str]) -> str:
        """Return the name of the span: the API, and the topic if there is only one."""
        return f"{self.NAME} {topics[0]}" if len(topics) == 1 else self.NAME

    def describe(self, topics: Sequence[str], batches: Sequence[str]) -> dict[str, Attribute]:
        """Return the attributes that requests have in common, with the names of OpenTelemetry's conventions."""
        exchange = self.exchange
        described: dict[str, Attribute] = {
            "messaging.system": "kafka",
            "messaging.operation.name": self.NAME,
            "messaging.operation.type": self.TYPE,
            "messaging.client.id": (exchange.client_id or "")[:TEXT_MAX],
            "anabranch.api_version": exchange.api_version,
            "anabranch.correlation_id": exchange.correlation_id,
            "anabranch.topics": topics[:BATCHES_MAX],
            "anabranch.batches": batches[:BATCHES_MAX],
        }
        if len(topics) == 1:
            described["messaging.destination.name"] = topics[0]
        return described

    def topic_name(self, name: str, topic_id: bytes) -> str:
        """Return the name of a topic that a message names in one way or the other. A wrong name may be longer."""
        if name:
            return name[:TEXT_MAX]
        found = self.serving.topics.get(topic_id)
        return topic_id.hex() if found is None else found.name


class _Produce(_Request):
    """Decode, append, wait until the log is durable."""

    NAME = "Produce"
    TYPE = "send"

    def end(self, response: ProduceResponse | None, now_ns: int) -> None:
        request: ProduceRequest = self.request
        data = [each for topic in request.topic_data for each in topic.partition_data]
        appended: list[tuple[str, int, int]] = []
        errors = []
        for topic in response.responses if response is not None else ():
            name = self.topic_name(topic.name, topic.topic_id)
            for part in topic.partition_responses:
                if part.error_code:
                    errors.append(part.error_code)
                else:
                    appended.append((name, part.index, part.base_offset))
        topics = list(dict.fromkeys(self.topic_name(each.name, each.topic_id) for each in request.topic_data))
        links = list(self._links([each.records for each in data[:LINKED_BATCHES_MAX]]))
        span = self.tracer.begin_request(self.name(topics), self.started_ns, links)
        for name, index, offset in appended:
            try:
                self.tracer.appended(self.serving.topics.partition(name, index).stream.stream_id, offset, span)
            except KafkaError:
                continue  # the partition is led elsewhere by now
        attributes = self.describe(topics, [f"{name}-{index}@{offset}" for name, index, offset in appended])
        attributes["anabranch.acks"] = request.acks
        attributes["anabranch.size_bytes"] = sum(len(each.records or b"") for each in data)
        if errors:
            attributes["error.type"] = str(errors[0])
        self.tracer.end_request(span, now_ns, attributes, self.steps("append", "wait for the log", now_ns))

    def _links(self, batches: Sequence[Buffer | None]) -> Iterator[Link]:
        """Yield links to the spans that the first records name in their headers, each once."""
        seen = set()
        for batch in batches:
            for traceparent, tracestate in trace_contexts(batch):
                link = None if traceparent in seen else self.tracer.link_to(traceparent, tracestate)
                seen.add(traceparent)
                if link is not None:
                    yield link


class _Fetch(_Request):
    """Decode, read, and wait for records or load them."""

    NAME = "Fetch"
    TYPE = "receive"
    _work: Work | None = None

    async def follow(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Load data that is not in memory."""
        self._work = Work(self.tracer.begin_request(self.NAME, self.started_ns))
        with self.tracer.inside(self._work):
            return await work

    def end(self, response: FetchResponse | None, now_ns: int) -> None:
        batches, topics, size_bytes = [], [], 0
        for topic in response.responses if response is not None else ():
            name = self.topic_name(topic.topic, topic.topic_id)
            topics.append(name)
            for part in topic.partitions:
                size_bytes += records_bytes(part.records)
                offset = base_offset(part.records)
                if offset is not None:
                    batches.append(f"{name}-{part.partition_index}@{offset}")
        span = self.tracer.begin_request(self.NAME, self.started_ns) if self._work is None else self._work.span
        span.update_name(self.name(topics))
        attributes = self.describe(topics, batches)
        attributes["anabranch.size_bytes"] = size_bytes
        attributes["anabranch.source"] = self._source(size_bytes)
        self.tracer.end_request(
            span, now_ns, attributes, self.steps("read" if self._work is None else "load", "wait", now_ns)
        )

    def _source(self, size_bytes: int) -> str:
        """Return where the bytes came from. Blocks that another reader was loading count as block cache."""
        if not size_bytes:
            return "none"
        if self._work is None:
            return "log cache"
        return "object store" if self._work.calls else "block cache"


def trace_contexts(batch: Buffer | None) -> Iterator[tuple[str, str]]:
    """Yield `traceparent` and `tracestate` of the first records that have them, as Kafka clients inject them (W3C)."""
    try:
        records = first_records(batch or b"", LINKED_RECORDS_MAX, bytes_max=LINKED_BYTES_MAX)
    except (KafkaError, ProtocolError):
        return
    for record in records:
        headers = dict(record.headers)
        traceparent = headers.get("traceparent")
        if traceparent:
            yield _text(traceparent), _text(headers.get("tracestate") or b"")


def records_bytes(records: Records | None) -> int:
    """Return the size of a partition's records in a response."""
    if records is None or isinstance(records, Buffer):
        return len(records or b"")
    return sum(map(len, records))


def base_offset(records: Records | None) -> int | None:
    """Return the first offset of a partition's records in a response; None if there are none."""
    first = records if records is None or isinstance(records, Buffer) else next(iter(records), None)
    return None if not first else int(_BASE_OFFSET.unpack_from(first)[0])


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace")
