"""The read path: block cache, object indexes, merged GETs, read-ahead, and lookups by time and size."""
