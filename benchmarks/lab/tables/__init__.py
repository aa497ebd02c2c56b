"""Parts of `benchmarks.topic_tables`."""
