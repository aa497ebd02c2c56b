"""Balancing: which node leads which partition, by what the partitions cost."""
