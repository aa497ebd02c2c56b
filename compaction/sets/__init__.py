"""First level of compaction: stream set objects become stream objects and at most one stream set object."""
