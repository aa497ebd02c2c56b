"""One node among others: its id, its log, what it serves, failover, and moves of partitions."""
