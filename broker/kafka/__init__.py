"""Kafka's rules: partitions, topics, groups, transactions, users, configs and quotas."""
