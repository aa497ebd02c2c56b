"""The demo: a year of flights through client, node, objects, compaction and a table, with every count checked."""
