"""Upkeep of the tables of topics by a node: which rows are missing, and the commits that add, join and remove files.

Whoever leads a topic's first partition commits its table, from the catalog and the object store alone
([ADR 41](../../docs/adr/0041-who-commits-a-table.md)). Columns, manifests and metadata are made by a process of its own
(`tables.process`): nothing here imports Arrow or Iceberg.

    options     what the configs of a topic say about its table
"""
