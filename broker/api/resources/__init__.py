"""Resources that have configs, in Kafka's terms: topics, brokers, loggers, groups, client metrics. One module per type.

Each type implements `Resource` (`values.py`): `describe` its configs, `alter` some of them, `replace` all of them, and
list the `names`. Handlers deal with the messages, resources with the rules. Errors are KafkaErrors with Kafka's
messages.
"""
