"""Format, writer and reader of objects."""
