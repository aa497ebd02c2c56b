"""Other nodes: which are there, and how to reach them."""
