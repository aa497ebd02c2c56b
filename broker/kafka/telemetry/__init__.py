"""Metrics that clients push (KIP-714): subscriptions, the rules for pushing, and the stored series."""
