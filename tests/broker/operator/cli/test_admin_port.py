"""Error messages of commands that look for a node's admin port and find something else."""

import socket
import threading

import pytest
from click.testing import CliRunner

from anabranch.broker.operator.cli.topic import topic


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, "cannot reach the admin port {}: no answer within 0.2 s; start the node, or name one"),
        (b"", "{} is not an admin port: it closes the connection"),
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 12\r\n\r\n<html>\n<body",
            "{} /api/v1/session: 404 Not Found",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ok>", "{} is not an admin port: no JSON at /api/v1/session"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "{} is not an admin port: no node at /api/v1/session"),
        (b"\x00\x00\x00\x05hello", "{} is not an admin port: BadStatusLine"),
    ],
)
def test_what_is_no_admin_port_is_one_line_within_seconds(
    words: bytes | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words is None:
        monkeypatch.setattr("anabranch.broker.operator.cli.admin_port.GREETING_TIMEOUT_S", 0.2)
    over = threading.Event()

    def serve() -> None:
        connection, _ = stranger.accept()
        with connection:
            assert connection.recv(1000)
            if words is None:
                over.wait()
            else:
                connection.sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        thread = threading.Thread(target=serve)
        thread.start()
        result = CliRunner().invoke(topic, ["detached", "--admin", address])
        over.set()
        thread.join()
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: {expected.format(address)}")
