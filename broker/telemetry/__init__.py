"""Metrics that clients push (KIP-714): who is asked for what, who may push when, and where it can be read."""
