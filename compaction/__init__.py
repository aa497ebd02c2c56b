"""Two-level compaction of objects."""
