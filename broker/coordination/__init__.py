"""What group and transaction coordinators share: their replicated log, its shards, and the offsets topic."""
