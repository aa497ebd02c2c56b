"""A real broker for tests: a process of its own, whose data is in memory, and which fails when it is told to.

    from anabranch.testing import Broker

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

With pytest, the fixtures `anabranch_broker` and `anabranch_topic` are there as soon as Anabranch is installed.
"""

from anabranch.testing.broker import Broker, BrokerError

__all__ = ["Broker", "BrokerError"]
