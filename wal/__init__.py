"""The Delta WAL: a ring of records on a raw device or preallocated file that makes acks durable."""
