"""The object log: a write-ahead log whose batches are objects under sequential keys, created by conditional PUTs."""
