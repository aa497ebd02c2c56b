"""Sends the flights of 2013 to a topic, created if needed: `python -m scripts.flights_send HOST:PORT TOPIC`."""

import sys
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from scripts.demo.clients import create_topic, send
from scripts.demo.flights import read_flights

PARTITIONS = 6


def main(arguments: Sequence[str]) -> None:
    """Send once: an existing topic is left alone, so that a restart sends nothing twice."""
    servers, topic = arguments
    try:
        create_topic(servers, topic, PARTITIONS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        print(f"topic {topic} exists already")
        return
    sent = send(servers, topic, read_flights(), lambda _done: None)
    print(f"{sent.tally.rows:,} flights sent to {topic}")


if __name__ == "__main__":
    main(sys.argv[1:])
