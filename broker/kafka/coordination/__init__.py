"""The parts that the coordinators of groups and transactions share: logs, shards, internal topics, patterns."""
