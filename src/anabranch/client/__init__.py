"""A small blocking Kafka client for commands and checks, with Kafka's client properties, TLS and SASL."""
