"""One pipeline: topics to a table of a lakehouse, each record exactly once, described by one TOML file."""
