"""Sockets: memory for frames, connections, the listening server."""
