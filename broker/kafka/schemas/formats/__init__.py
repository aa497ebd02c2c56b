"""Formats of schemas: how each is parsed, written, and compared with an earlier version."""
