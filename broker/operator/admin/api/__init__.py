"""The JSON API of the admin port, for the console and for scripts. `docs/openapi.json` describes it."""
