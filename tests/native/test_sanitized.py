"""The native part under AddressSanitizer, in a soak."""

import pytest

from tests.native.sanitized import main
from tests.support.native import require_native
from tests.support.soak import LONG


@pytest.mark.slow
@pytest.mark.timeout(3600)
@LONG  # it builds the part twice, and checked code is slow
def test_no_memory_is_used_wrongly() -> None:
    require_native()
    assert main() == 0
