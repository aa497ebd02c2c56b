"""The broker: connections, Kafka API handlers, partitions, groups, and the composition root."""
