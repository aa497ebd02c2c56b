"""Bytes that are counted as crossing racks."""

from benchmarks.replicas import internal_bytes

LINES = [
    'ESTAB 0 0 127.0.0.1:60140 127.0.0.1:700 users:(("python",pid=11,fd=31)) bbr bytes_acked:165 bytes_received:195',
    'ESTAB 0 0 127.0.0.1:700 127.0.0.1:60140 users:(("python",pid=22,fd=30)) bbr bytes_acked:195 bytes_received:165',
    'ESTAB 0 0 127.0.0.1:60141 127.0.0.1:700 users:(("python",pid=11,fd=32)) cubic bytes_acked:5 segs_out:4',
    'ESTAB 0 0 127.0.0.1:60142 127.0.0.1:9092 users:(("python",pid=11,fd=33)) cubic bytes_acked:5 bytes_received:7',
    'ESTAB 0 0 127.0.0.1:60143 127.0.0.1:700 users:(("other",pid=33,fd=34)) cubic bytes_acked:5 bytes_received:7',
    "ESTAB 0 0 127.0.0.1:60144 127.0.0.1:700 cubic bytes_acked:5 bytes_received:7",
]


def test_connections_between_nodes_count_once_and_others_not() -> None:
    found = internal_bytes(LINES, {11: "a", 22: "b"}, {"127.0.0.1:700": "b", "127.0.0.1:701": "a"})
    assert found == {("a", "b"): 170, ("b", "a"): 195}
