"""The first level of compaction: stream set objects become at most one, and stream objects."""
