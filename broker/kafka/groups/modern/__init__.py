"""Base of consumer, share and streams groups, whose assignments the broker computes (KIP-848)."""
