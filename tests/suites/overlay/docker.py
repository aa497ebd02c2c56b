"""Stands for Docker: passes `docker compose stop kafka-3` (start, logs) to the runner of the suite."""

import os
import sys
from multiprocessing.connection import Client

with Client(os.environ["SUITE_BROKERS"]) as runner:
    runner.send(sys.argv[1:])
    answer = runner.recv()
if isinstance(answer, Exception):
    raise answer
sys.stdout.write(answer)
