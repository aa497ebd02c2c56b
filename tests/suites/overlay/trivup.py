"""Takes the place of a package that confluent-kafka's tests start clusters with: never used, as BROKERS names one."""


class KafkaCluster:
    """A cluster that nobody starts."""
