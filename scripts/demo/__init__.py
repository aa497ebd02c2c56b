"""The demo: a year of flights through client, node, objects, compaction and Spark, with every count checked."""
