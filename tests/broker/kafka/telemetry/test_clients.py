"""Permission to fetch subscriptions and push metrics at a given time (KIP-714), on a virtual clock."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.kafka.configs.cluster import CLIENT_METRICS, ClusterConfigs
from anabranch.broker.kafka.telemetry.clients import ClientMetrics, Push
from anabranch.broker.kafka.telemetry.subscriptions import ClientSubscription
from anabranch.broker.node.settings.client_areas import TelemetrySettings
from anabranch.protocol.compression import Compression, compress
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.wire import ZERO_UUID
from anabranch.s3stream.catalog.catalog import Catalog
from tests.broker.kafka.telemetry.otlp_data import gauge, metrics_data, point

DATA = metrics_data(gauge("org.apache.kafka.producer.x", point(1.0)))
ME = {
    "client_id": "me",
    "client_instance_id": "i",
    "client_software_name": "test",
    "client_software_version": "1.0",
    "client_source_address": "127.0.0.1",
    "client_source_port": "1",
}


class TelemetryNode:
    """Clients of one node."""

    def __init__(self, configs: ClusterConfigs, **settings: Any) -> None:
        self.configs = configs
        self.now_ms = 1_000_000
        self.ids = iter(range(100, 200))
        limits = replace(TelemetrySettings(), **settings)
        self.metrics = ClientMetrics(configs, limits, lambda: self.now_ms, lambda: next(self.ids).to_bytes(16, "big"))

    async def subscribe(self, name: str, **values: str) -> None:
        given = {key.replace("_", "."): value for key, value in values.items()}
        await self.configs.alter(CLIENT_METRICS, name, set_configs=given, unset=())

    def ask(self, instance_id: bytes = ZERO_UUID, **attributes: str) -> tuple[bytes, ClientSubscription]:
        return self.metrics.subscribe(instance_id, {**ME, **attributes})

    def push(self, instance_id: bytes, subscription_id: int, **fields: Any) -> ErrorCode:
        values: dict[str, Any] = {"is_terminating": False, "compression": 0, "metrics": DATA, **fields}
        try:
            self.metrics.push(Push(instance_id, subscription_id, **values), ME)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def refused(self, instance_id: bytes) -> ErrorCode:
        with pytest.raises(KafkaError) as refusal:
            self.ask(instance_id)
        return refusal.value.code


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[TelemetryNode]:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    yield TelemetryNode(ClusterConfigs(catalog))
    await catalog.close()


async def test_all_subscriptions_that_concern_a_client_come_together(scene: TelemetryNode) -> None:
    assert scene.ask()[1].metrics == ()
    await scene.subscribe("a", metrics="one,two", interval_ms="60000")
    await scene.subscribe("b", metrics="three", interval_ms="30000", match="client_id=m.,client_source_address=127.*")
    await scene.subscribe("c", metrics="four", interval_ms="100", match="client_id=somebody")
    wanted = scene.ask()[1]
    assert (set(wanted.metrics), wanted.interval_ms) == ({"one", "two", "three"}, 30_000)
    wanted = scene.ask(client_id="somebody")[1]
    assert (set(wanted.metrics), wanted.interval_ms) == ({"one", "two", "four"}, 100)
    await scene.subscribe("d", metrics="*", match="client_id=m\u00e4")
    assert scene.ask(client_id="m\u00e4")[1].metrics == ("*",)


async def test_a_client_comes_once_in_an_interval(scene: TelemetryNode) -> None:
    await scene.subscribe("a", metrics="*", interval_ms="1000")
    mine, wanted = scene.ask()
    assert scene.refused(mine) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.NONE
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    scene.now_ms += 999
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert scene.refused(mine) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    scene.now_ms += 1
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.NONE
    scene.now_ms += 1000
    assert scene.ask(mine)[1] == wanted
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.NONE, "at once after asking"
    assert scene.metrics.throttled == 4


async def test_a_changed_subscription_sends_a_client_back_to_ask(scene: TelemetryNode) -> None:
    await scene.subscribe("a", metrics="one", interval_ms="1000")
    mine, wanted = scene.ask()
    await scene.configs.alter("group", "g", set_configs={"x": "1"}, unset=())
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.NONE, "not its subscription that changed"
    await scene.subscribe("a", metrics="two")
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    again = scene.ask(mine)[1]
    assert again.subscription_id != wanted.subscription_id
    assert scene.push(mine, again.subscription_id) == ErrorCode.NONE


async def test_the_last_push_is_taken_at_any_time_and_nothing_after_it(scene: TelemetryNode) -> None:
    await scene.subscribe("a", metrics="*", interval_ms="1000")
    mine, wanted = scene.ask()
    assert scene.push(mine, wanted.subscription_id) == ErrorCode.NONE
    assert scene.push(mine, wanted.subscription_id, is_terminating=True) == ErrorCode.NONE
    scene.now_ms += 5000
    for last in (True, False):
        assert scene.push(mine, wanted.subscription_id, is_terminating=last) == ErrorCode.INVALID_REQUEST


async def test_what_cannot_be_taken_is_named(scene: TelemetryNode) -> None:
    settings = scene.metrics.settings

    def push(**fields: Any) -> ErrorCode:
        mine, wanted = scene.ask()
        return scene.push(mine, wanted.subscription_id, **fields)

    large = metrics_data(gauge("x" * settings.push_bytes_max, point(1.0)))
    assert push(metrics=large) == ErrorCode.TELEMETRY_TOO_LARGE
    assert push(metrics=compress(Compression.ZSTD, large), compression=4) == ErrorCode.INVALID_RECORD, "a bomb"
    assert push(compression=5) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert push(compression=Compression.GZIP) == ErrorCode.INVALID_RECORD
    assert push(metrics=b"\xff" * 9) == ErrorCode.INVALID_RECORD
    assert push(metrics=b"") == ErrorCode.NONE
    for codec in Compression:
        assert push(metrics=compress(codec, DATA), compression=codec) == ErrorCode.NONE
    assert scene.push(ZERO_UUID, 1) == ErrorCode.INVALID_REQUEST
    assert scene.push(b"n" * 16, 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert scene.metrics.series.stats.points == len(Compression)


async def test_the_client_not_heard_of_for_longest_is_forgotten(scene: TelemetryNode) -> None:
    few = TelemetryNode(scene.configs, clients_max=2)
    first, second = few.ask()[0], few.ask()[0]
    assert few.refused(first) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    few.ask()
    assert len(few.metrics) == 2
    assert few.refused(first) == ErrorCode.THROTTLING_QUOTA_EXCEEDED, "heard of since"
    assert few.ask(second)[0] == second, "forgotten, so it is new"
