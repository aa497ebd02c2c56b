"""Benchmarks: one module per package, each with `--quick` (about a minute) and `--json FILE`.

Machines are noisy: prefer ratios within one run to CPU seconds, and CPU seconds to seconds.
"""
