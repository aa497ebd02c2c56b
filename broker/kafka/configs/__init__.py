"""Kafka's configs: definitions, and the values in force for topics, brokers, groups and the cluster."""
