"""A real broker for tests: a separate process with its data in memory, which fails on request.

    from anabranch.testing import Broker

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

With pytest, the fixtures `anabranch_broker` and `anabranch_topic` are there as soon as Anabranch is installed.
"""

from anabranch.testing.broker import Broker, Record
from anabranch.testing.process import BrokerError
from anabranch.testing.snapshots import Snapshot
from anabranch.testing.table import Table

__all__ = ["Broker", "BrokerError", "Record", "Snapshot", "Table"]
