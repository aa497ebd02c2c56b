"""Messages without an API key: records of internal topics, and the bytes that group members exchange."""
