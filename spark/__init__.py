"""Spark jobs: pipelines from topics to tables, direct reads of objects, compaction and verification."""
