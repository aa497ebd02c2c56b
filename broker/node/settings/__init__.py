"""Settings of a node, where they come from, and what is made from them: stores, clock, data directory, memory sizes."""
