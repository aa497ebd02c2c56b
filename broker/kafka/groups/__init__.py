"""The group coordinator: groups of the classic and the consumer protocol, and their committed offsets."""
