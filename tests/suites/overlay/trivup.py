"""Replaces a package with which confluent-kafka's tests start clusters: never used, as BROKERS names one."""


class KafkaCluster:
    """A cluster that is never started."""
