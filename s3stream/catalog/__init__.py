"""The catalog: what exists, who owns it, where it lies."""
