"""The Kafka wire protocol, sans-IO: bytes in, messages out."""
