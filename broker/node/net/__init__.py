"""Network: memory for frames, connections, the listening server."""
