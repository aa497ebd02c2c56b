"""Prefixes of the admin port's paths. Everything else that it serves is `/metrics` and the probes under `/health`."""

from typing import Final

API_PREFIX: Final = "/api/v1"
CONSOLE_PREFIX: Final = "/console/"
REGISTRY_PREFIX: Final = "/schema-registry"
