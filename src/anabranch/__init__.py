"""Anabranch: a Kafka-compatible broker that keeps its data in object storage.

Public are `anabranch.testing`, and what the guides name. The rooms of the tree are linked into this package.
"""
