"""Partitions that this node leads: checks of batches, producers, transactions, leader epochs, retention, cleaning."""
