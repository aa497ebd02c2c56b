"""The format of objects, and the code that writes and reads it."""
