"""What has configs: one module per type of resource, each with the same few functions, found by Kafka's type codes.

A resource says what its configs are (`describe`), changes some of them (`alter`) or all (`replace`), and which of its
type there are (`names`). Handlers know the messages, resources the rules. Errors are KafkaErrors in Kafka's words.
"""
