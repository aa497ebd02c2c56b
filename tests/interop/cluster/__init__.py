"""Clients and tools against a cluster of three nodes, each a process, which all tests of a run share."""
