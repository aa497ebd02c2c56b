"""Set-up, the programs that tests need, and the demo: run from a checkout, not part of the distribution."""
