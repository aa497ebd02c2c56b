"""The schema registry: schemas of records by subject and version, with rules for their changes.

`state` is what the records of the log amount to, `queries` and `changes` decide from it, and `registry` follows and
writes the log, the partition of `_schemas`.
"""
