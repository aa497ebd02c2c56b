"""One node among others: its id and log, its view of the cluster, failover, and moves of partitions."""
