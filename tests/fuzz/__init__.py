"""Fuzzing of every input that strangers or disks give a node: `python -m tests.fuzz --target NAME --seconds N`."""
