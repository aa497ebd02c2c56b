"""A node's membership of its cluster: its id and lease, its log, other nodes, and rebuilding a lost catalog."""
