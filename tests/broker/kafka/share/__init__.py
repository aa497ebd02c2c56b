"""Share groups."""
