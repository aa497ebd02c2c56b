"""Demo of a cluster that loses a node, gets a new one, and lets one go, while clients work."""
