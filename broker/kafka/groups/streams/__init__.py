"""The streams protocol (KIP-1071): members of a group run the tasks of one Kafka Streams application."""
