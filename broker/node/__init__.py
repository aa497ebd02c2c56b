"""The process: listeners and connections, links to other nodes, settings, logs and traces."""
