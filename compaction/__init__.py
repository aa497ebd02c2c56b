"""Compaction of objects on two levels, and log compaction by key."""
