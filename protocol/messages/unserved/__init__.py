"""Messages of the APIs that no handler serves yet. Tests and tools use them to compare a node with Apache Kafka."""
