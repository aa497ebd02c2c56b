"""The catalog: the nodes, topics, streams and objects of a cluster, who owns them, and where data is stored."""
