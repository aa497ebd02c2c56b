"""The check of the brokers before Java is started: one clear line, in bounded time."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from anabranch.spark import preflight
from anabranch.spark.preflight import BrokerError, check_brokers


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """A server that takes one connection and answers with these bytes, or never."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                if answer is not None:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                # Until the other side is gone, gently or not.
                with suppress(ConnectionError):
                    while connection.recv(1 << 16):
                        pass

        done = thread.submit(serve)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        done.result(30)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.interop
def test_a_topic_that_is_there_and_one_that_is_not(servers: str, topic: str) -> None:
    check_brokers(servers, [topic], {})
    check_brokers(f"{free_address()}, {servers}", [], {})
    with pytest.raises(BrokerError, match="has no topic 'none-such', 'nor-this'; see `anabranch topic list`"):
        check_brokers(servers, [topic, "none-such", "nor-this"], {})
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        check_brokers(servers, ["no/name"], {})


def test_nobody_listens() -> None:
    addresses = [free_address(), free_address()]
    with pytest.raises(BrokerError) as caught:
        check_brokers(",".join(addresses), ["t"], {})
    assert str(caught.value) == "; ".join(
        f"cannot connect to {a}: Connection refused; is the node running?" for a in addresses
    )


def test_somebody_listens_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "TIMEOUT_S", 0.1)
    with listening(None) as address, pytest.raises(BrokerError, match=f"{address} is not a Kafka broker: no answer"):
        check_brokers(address, ["t"], {})


def test_somebody_speaks_something_else() -> None:
    with listening(b"HTTP/1.1 400 Bad Request") as address, pytest.raises(BrokerError, match="not a Kafka broker"):
        check_brokers(address, ["t"], {})


def test_where_only_java_can_read_the_properties_the_connection_is_tried(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    for properties in (
        {"security.protocol": "SSL", "ssl.truststore.location": str(store)},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"},
        {"security.protocol": "SSL", "ssl.provider": "x"},
    ):
        with listening(None) as address:
            check_brokers(address, ["t"], properties)
        with pytest.raises(BrokerError, match=r"cannot connect to .*: Connection refused"):
            check_brokers(free_address(), ["t"], properties)
        with pytest.raises(BrokerError, match="expected HOST:PORT"):
            check_brokers("localhost", ["t"], properties)


@pytest.mark.parametrize("servers", ["localhost", "localhost:x", ":9092", "localhost:99999", ""])
def test_an_address_that_is_none(servers: str) -> None:
    with pytest.raises(BrokerError, match="expected HOST:PORT"):
        check_brokers(servers, [], {})
