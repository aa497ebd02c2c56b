"""Planned moves of partitions between living nodes: orders, the handing over, and the receiving."""
