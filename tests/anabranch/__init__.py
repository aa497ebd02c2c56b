"""Tests of what Python programs import: the broker for their tests."""
