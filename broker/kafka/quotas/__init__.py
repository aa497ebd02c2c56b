"""Client quotas: their limits, each client's use, and throttling."""
