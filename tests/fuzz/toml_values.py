"""Values of TOML files: of every type, most of them wrong where they are put."""

from random import Random

VALUES = (
    "1", "0", "-1", "9223372036854775807", "99999999999999999999999", "1.5", "nan", "inf", "-inf", "true", "false",
    '""', '"x"', '"4GiB"', '"4 GB"', '"-1MiB"', '"1e3"', '"99999999999999999999GiB"', '"/tmp/x"', '"a\\nb"',
    '"\\u0000"', '"\\u001b[2J"', '"s3://bucket"', '"postgresql://u:secret@h/d"', '"mysql://u:secret@h/d"',
    '"sqlite:///:memory:"', '"é\\U0001F600"', "[]", "[1]", '["a"]', '["", ["b"]]', "{}", "{ a = 1 }",
    "{ a = { b = [1] } }", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", '"""\nmany\nlines"""', "0x7f", "1_000",
    '"auto"', '"direct"', '"iceberg"', '"delta"', '"parquet"', '"kafka"', '"json"', '"avro"', '"1 hour"', '"-1 days"',
    '"lake.db.t"', '"localhost:9092"', '["t", "u"]', '{ t = { 0 = 17 } }',
)  # fmt: skip

STRANGE = 5 * (
    b'"', b"'", b'"""', b"\xff", b"\r", b"\xe2\x80\xa8", b'["a\\u001bb"]\n', b'"a\\nb" = 1\n', b'"a b" = 1\n',
    b"a.b.c = 1\n",
    b"a = " + b"[" * 2000, b"a = " + b"{a=" * 2000, b"nan", b"1979-05-27",
)  # fmt: skip
"""Pieces of files, repeated so that they are chosen as often as the many names of settings."""


def random_value(random: Random) -> str:
    """Return a value in TOML."""
    return random.choice(VALUES)
