"""Kafka's APIs: a handler for each, its guard, and the configs of each type of resource."""
