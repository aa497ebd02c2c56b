"""Log compaction by key (`cleanup.policy=compact`)."""
