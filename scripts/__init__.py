"""Set-up, tools for the tests, and the demo. Run from a checkout; not part of the distribution."""
