"""Processes that benchmarks drive: nodes, Apache Kafka, and Kafka's own clients."""
