"""Benchmarks: one module per package, each with `--quick` (about a minute) and `--json FILE`.

Machines are noisy: read ratios within one run, and CPU seconds, before seconds.
"""
