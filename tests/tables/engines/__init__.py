"""Engines that read tables, each against the records of a consumer."""
