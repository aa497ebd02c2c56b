"""Compressed frames are read and refused as by Apache Kafka's consumer, whose verdicts are recorded."""

import pytest

from anabranch.protocol.errors import KafkaError
from anabranch.protocol.records import decode_records
from tests.support.frames import FAMILIES, READ, REFUSALS, REFUSED, REFUSED_HERE, VERDICTS, Family


def decoded(batch: bytearray, family: Family) -> str:
    try:
        records = decode_records(batch)
    except KafkaError as error:
        return REFUSED if error.code in REFUSALS else str(error)
    return READ if records == decode_records(family.like) else REFUSED


def test_there_is_a_verdict_for_each_frame() -> None:
    assert {name: len(verdicts) for name, verdicts in VERDICTS.items()} == {
        name: len(family.frames) for name, family in FAMILIES.items()
    }


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_it_is_decompressed_if_a_kafka_consumer_does(family: Family) -> None:
    found = [decoded(batch, family) for batch in family.batches()]
    different = {
        (family.name, number)
        for number, (kafka, ours) in enumerate(zip(VERDICTS[family.name], found, strict=True))
        if kafka != ours
    }
    assert different == {(name, number) for name, number in REFUSED_HERE if name == family.name}
