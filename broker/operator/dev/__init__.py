"""Nodes for trials and tests: their data is in memory, and they fail on request."""
