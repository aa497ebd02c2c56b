"""A pipeline copies topics to a lakehouse table, each record exactly once, as one TOML file describes."""
