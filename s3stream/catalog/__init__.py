"""The catalog: nodes, topics, streams and objects of a cluster, their owners, and the place of all data."""
