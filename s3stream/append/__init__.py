"""The append path: open streams, the journal over the WAL, the log cache, and recovery."""
