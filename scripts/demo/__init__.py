"""The demo: a year of flights through a Kafka client, the node, objects, compaction and Spark, every count checked."""
