"""Upkeep of catalog and stores: garbage collection, verification, manifests, and rebuilding a catalog."""
