"""Transactions: what a partition remembers of them, the coordinator's state machine, and its log."""
