"""The share coordinator: durable states of share partitions, in shards of `__share_group_state` (KIP-932)."""
