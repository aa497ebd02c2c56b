"""SASL: mechanisms, passwords of users, and their credentials in the catalog."""
