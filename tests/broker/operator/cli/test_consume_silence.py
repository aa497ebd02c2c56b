"""Silence of nodes, for which `consume` fails: only time in which they could have sent something counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from anabranch.broker.operator.cli import consume_group, consume_source
from anabranch.broker.operator.cli.client import make_client
from anabranch.broker.operator.cli.consume_group import GroupRead
from anabranch.broker.operator.cli.consume_source import SILENCE_S
from anabranch.broker.operator.cli.points import Point
from anabranch.broker.operator.cli.record_lines import ReadRecord
from anabranch.client.errors import ClientError

RECORD = ReadRecord("t", 0, 0, 0, "create", b"", b"", ())


@dataclass
class Clock:
    now_s: float = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@dataclass
class ScriptedConsumer:
    """Answers each question with what the next step gives."""

    steps: list[Callable[[], Sequence[object]]] = field(default_factory=list)

    def consume(self, _count: int, _timeout_s: float) -> Sequence[object]:
        return self.steps.pop(0)()

    def close(self) -> None:
        """There is nothing to close."""


class ScriptedRead(GroupRead):
    """A member of a group, with a consumer that is not one."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(make_client(None), ["t"], "g", Point("earliest"), follow=False, read_committed=False)
        self.consumer = consumer

    def assign(self) -> None:
        """Receive the only partition."""
        self._on_assign(self.consumer, [TopicPartition("t", 0)])

    def _take(self, message: Any) -> ReadRecord:
        return message  # type: ignore[no-any-return]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (consume_source, consume_group):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def test_the_wait_for_a_group_is_no_silence(clock: Clock) -> None:
    def join() -> Sequence[object]:
        clock.now_s += SILENCE_S + 15  # a member that was killed leaves after its session
        read.assign()
        return ()

    consumer = ScriptedConsumer()
    read = ScriptedRead(consumer)
    consumer.steps += [join, lambda: [RECORD]]
    assert next(read.batches()) == [RECORD]


def test_an_output_that_stands_still_is_no_silence(clock: Clock) -> None:
    def wait() -> Sequence[object]:
        clock.now_s += SILENCE_S * 0.75
        return ()

    consumer = ScriptedConsumer()
    read = ScriptedRead(consumer)
    read.assign()
    consumer.steps += [lambda: [RECORD], wait, lambda: [RECORD], wait, wait]
    batches = read.batches()
    assert next(batches) == [RECORD]
    clock.now_s += SILENCE_S * 10
    assert next(batches) == [RECORD]
    with pytest.raises(ClientError, match="nothing has come of t-0 for 30 s"):
        next(batches)
