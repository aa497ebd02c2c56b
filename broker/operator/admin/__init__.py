"""The admin port: HTTP for metrics, status and maintenance."""
