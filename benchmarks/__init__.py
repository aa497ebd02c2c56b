"""Benchmarks: one module per package, each with `--quick` (about a minute) and `--json FILE`.

Machines are noisy: prefer ratios within one run to CPU seconds, and CPU seconds to seconds.
"""

import os

# They start processes: without stored bytecode, as of an installed package, each would compile the sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
