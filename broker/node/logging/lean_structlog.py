"""structlog without rich, which it imports where that is installed, for tracebacks with the variables of each frame.

No line of the log has those, since they may be secrets, and rich would be a twentieth of the time of a start and a
twelfth of its memory. So the modules that set up the log of a process import structlog from here, before any other.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        import structlog
    finally:
        del sys.modules["rich"]
else:
    import structlog

__all__ = ["structlog"]
