"""Bugs that are planted on purpose, to show that the simulator finds such bugs. None of them ever ships."""
