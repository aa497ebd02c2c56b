"""The storage engine: streams of opaque batches in few objects.

Invariants are cited by their number in `docs/architecture.md`.
"""
