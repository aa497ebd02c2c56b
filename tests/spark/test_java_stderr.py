"""Java's notice about a module of Spark is left out of standard error, and nothing else is."""

import subprocess
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.spark.java_stderr import NOTICE, without_notice

LINES = st.sampled_from([NOTICE, b"\n", b"W\n", b"WARNING: Using incubator modules: jdk.other\n", b"# A fatal error\n"])
OTHERS = st.sampled_from([b"", b"100%\r", b"WARNING: Using", NOTICE.strip(), b"x" + NOTICE])


@given(st.lists(LINES), OTHERS, st.integers(1, 80))
@example([NOTICE], b"", 1)
@example([b"Picked up JAVA_TOOL_OPTIONS: -Xss4m\n", NOTICE], b"100%\r", 1 << 16)
def test_only_the_notice_is_left_out_however_it_arrives(lines: list[bytes], end: bytes, size: int) -> None:
    text = b"".join(lines) + end
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    assert b"".join(without_notice(chunks)) == b"".join(line for line in lines if line != NOTICE) + end


def test_what_has_no_end_of_line_does_not_wait_for_it() -> None:
    chunks = [b"50%\r", NOTICE, NOTICE[:10], NOTICE[10:-1], b" and more"]
    assert list(without_notice(chunks)) == [b"50%\r", NOTICE, NOTICE[:-1] + b" and more"]


DRIVER = """
import os, subprocess, sys
from anabranch.spark.java_stderr import start_copier
copier = start_copier()
subprocess.Popen(["sh", "-c", sys.argv[1]], stdin=subprocess.PIPE, stderr=copier.stdin)
os._exit(0)
"""
JAVA = "read line; echo WARNING: Using incubator modules: jdk.incubator.vector >&2; printf 'last words' >&2; kill -9 $$"


def test_what_java_says_after_the_end_of_its_driver_and_before_its_own_is_seen() -> None:
    done = subprocess.run([sys.executable, "-c", DRIVER, JAVA], capture_output=True, check=True, timeout=60)
    assert done.stderr == b"last words"
