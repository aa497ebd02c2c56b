"""The same requests to a node and to Apache Kafka; the answers are compared field by field.

A *script* (`tests/differential/scripts/`) is a function that sends requests through a `Script` (`script.py`), which
records each answer as a tree of plain values in which ids, times and epochs have been replaced (`answers.py`). It runs
once against each broker. The two transcripts must be equal, except for the differences that `known_differences.py`
lists with their reasons. An entry there that no longer occurs fails the test.
"""
