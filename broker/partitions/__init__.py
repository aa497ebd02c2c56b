"""Partitions led by this node: checks of batches, producers, transactions, leader epochs, retention, cleaning."""
