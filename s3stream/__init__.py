"""The storage engine: streams of opaque batches in few objects."""
