"""Metrics that clients push (KIP-714)."""

import struct

from anabranch.protocol.compression import Compression, compress
from anabranch.protocol.messages import incremental_alter_configs as incremental
from anabranch.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from anabranch.protocol.messages.push_telemetry import PushTelemetryRequest
from tests.differential.script import Script
from tests.differential.scripts.configs import CLIENT_METRICS, DELETE, SET

GZIP, SNAPPY, LZ4, ZSTD = Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD
LONG_MS = "3600000"
"""Longer than the test, so that a second push is always too early."""


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def otlp_gauge(name: str, value: float) -> bytes:
    """A `MetricsData` with one metric of one point."""
    point = bytes([4 << 3 | 1]) + struct.pack("<d", value)
    metric = _field(1, name.encode()) + _field(5, _field(1, point))
    return _field(1, _field(2, _field(2, metric)))


def otlp_padding(size: int) -> bytes:
    """A `MetricsData` with one unknown field, about 4 bytes larger than `size`."""
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    return bytes([9 << 3 | 2]) + length + b"\0" * size


METRICS = otlp_gauge("org.apache.kafka.producer.connection.count", 3.0)


def _subscribe(script: Script, name: str, **configs: str | None) -> None:
    changes = [
        incremental.AlterableConfig(
            name=key.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
        )
        for key, value in configs.items()
    ]
    resource = incremental.AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=changes)
    answer = script.ask(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert not answer.responses[0].error_code, answer


def _until_asked_for(script: Script, *metrics: str) -> None:
    request = GetTelemetrySubscriptionsRequest()  # a new instance each time, so that no request is too early
    script.until(request, 0, lambda answer: tuple(sorted(answer.requested_metrics)) == metrics)


def telemetry(script: Script) -> None:
    def push(instance: bytes, subscription: int, **fields: object) -> PushTelemetryRequest:
        values: dict[str, object] = {"metrics": METRICS, **fields}
        return PushTelemetryRequest(client_instance_id=instance, subscription_id=subscription, **values)  # type: ignore[arg-type]

    anew = GetTelemetrySubscriptionsRequest()
    script.call("nothing subscribed", anew, 0)
    _subscribe(script, "tm-a", metrics="org.apache.kafka.producer.", interval_ms=LONG_MS)
    _until_asked_for(script, "org.apache.kafka.producer.")
    _subscribe(script, "tm-other", metrics="org.apache.kafka.consumer.", match="client_id=somebody", interval_ms="100")
    _subscribe(
        script, "tm-mine", metrics="org.apache.kafka.admin.", match="client_id=diff.*,client_source_address=127\\..*"
    )
    _until_asked_for(script, "org.apache.kafka.admin.", "org.apache.kafka.producer.")
    mine = script.call("two subscriptions", anew, 0)
    again = GetTelemetrySubscriptionsRequest(client_instance_id=mine.client_instance_id)
    script.call("asked too early", again, 0)
    script.call("pushed", push(mine.client_instance_id, mine.subscription_id), 0)
    script.call("pushed too early", push(mine.client_instance_id, mine.subscription_id), 0)
    script.call("asked too early after a push", again, 0)
    script.call("the last", push(mine.client_instance_id, mine.subscription_id, terminating=True), 0)
    script.call("after the last", push(mine.client_instance_id, mine.subscription_id, terminating=True), 0)
    own = GetTelemetrySubscriptionsRequest(client_instance_id=b"\x07" * 16)
    script.call("an id of one's own", own, 0)
    script.call("of a reserved id", GetTelemetrySubscriptionsRequest(client_instance_id=b"\0" * 15 + b"\1"), 0)
    script.call("pushed with another subscription", push(b"\x07" * 16, 1), 0)
    script.call("asked after that", own, 0)
    script.call("pushed without an id", push(b"\0" * 16, 1), 0)
    script.call("pushed with a reserved id", push(b"\0" * 15 + b"\1", 1), 0)
    script.call("pushed by one unknown", push(b"\x08" * 16, 1), 0)

    def fresh(name: str, **fields: object) -> None:
        given = script.ask(anew, 0)
        script.call(name, push(given.client_instance_id, given.subscription_id, **fields), 0)

    fresh("nothing pushed", metrics=b"")
    fresh("gzip", compression_type=GZIP, metrics=compress(GZIP, METRICS))
    fresh("zstd", compression_type=ZSTD, metrics=compress(ZSTD, METRICS))
    fresh("lz4", compression_type=LZ4, metrics=compress(LZ4, METRICS))
    fresh("snappy", compression_type=SNAPPY, metrics=compress(SNAPPY, METRICS))
    fresh("a codec there is not", compression_type=9)
    fresh("a negative codec", compression_type=-1)
    fresh("gzip that is none", compression_type=GZIP)
    fresh("not OTLP", metrics=b"\xff" * 50)
    fresh("as large as may be", metrics=otlp_padding((1 << 20) - 4))
    fresh("too large", metrics=b"\0" * ((1 << 20) + 1))
    fresh("the first is the last", terminating=True)
    _subscribe(script, "tm-all", metrics="*", interval_ms="1000")
    _until_asked_for(script, "*")
    script.call("all", anew, 0)
    for name in ("tm-a", "tm-all", "tm-mine", "tm-other"):
        _subscribe(script, name, metrics=None, interval_ms=None, match=None)
    _until_asked_for(script)
    script.call("nothing any more", anew, 0)


SCRIPTS = (telemetry,)
