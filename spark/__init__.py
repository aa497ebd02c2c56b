"""Pipelines on Spark: Kafka topics to tables."""
