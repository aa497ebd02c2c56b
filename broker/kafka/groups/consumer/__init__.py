"""Groups of the consumer protocol (KIP-848): state machine, assignors, records, topic patterns."""
